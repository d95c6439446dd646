"""Rotary position embedding: frequencies of a head from a config, and the rotation of queries and keys.

Angles are computed for a step's positions instead of kept in a table, which for 128k positions would outweigh a small
model. Formulas: RoFormer (arXiv 2104.09864); "linear" divides positions (arXiv 2306.15595); "llama3" divides low
frequencies only, with a ramp between two wavelengths (Llama 3.1's reference code).
"""

from math import tau
from typing import NamedTuple

import torch

from tidegate_checkpoint.config_json import Json
from tidegate_checkpoint.errors import UnsupportedCheckpoint


class Rotation(NamedTuple):
    """cos and sin of a step's angles, [tokens, 1, head_dim]; the first half of sin is negated."""

    cos: torch.Tensor
    sin: torch.Tensor


def inverse_frequencies(head_dim: int, base: float, scaling: Json | None = None) -> torch.Tensor:
    """fp32 [head_dim / 2]. `scaling` is a config's rope_scaling. Raises UnsupportedCheckpoint for unknown kinds."""
    plain = 1.0 / (base ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim))
    match scaling:
        case None:
            return plain
        case {"rope_type": "linear", "factor": int() | float() as factor}:
            return plain / factor
        case {
            "rope_type": "llama3",
            "factor": int() | float() as factor,
            "low_freq_factor": int() | float() as low,
            "high_freq_factor": int() | float() as high,
            "original_max_position_embeddings": int() as trained_context,
        }:
            wavelengths = tau / plain
            kept_share = ((trained_context / wavelengths - low) / (high - low)).clamp(0.0, 1.0)
            return kept_share * plain + (1 - kept_share) * plain / factor
        case _:
            raise UnsupportedCheckpoint(f"rotary scaling {scaling} is not supported; supported are linear and llama3")


def rotation_at(positions: torch.Tensor, frequencies: torch.Tensor, dtype: torch.dtype) -> Rotation:
    """Angles of int64 positions [tokens]; the pairs are (i, i + head_dim / 2)."""
    angles = positions[:, None, None].float() * frequencies
    cos, sin = angles.cos(), angles.sin()
    return Rotation(torch.cat((cos, cos), -1).to(dtype), torch.cat((-sin, sin), -1).to(dtype))


def rotate(heads: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    """Rotates [tokens, heads, head_dim]."""
    swapped = heads.roll(heads.shape[-1] // 2, -1)
    return torch.addcmul(heads * rotation.cos, swapped, rotation.sin)
