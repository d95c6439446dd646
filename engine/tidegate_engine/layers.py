"""What model files are built from: linear layers, norms and embeddings, made from a checkpoint for one device.

A model file asks the loader for parts by tensor name and stays ignorant of files, dtypes, packing and devices:

    device  checkpoint   activations  matrices                    norms
    cpu     float32      fp32         fp32, order chosen          fp32
    cpu     16 bit       fp32         16 bit, packing chosen      fp32
    cuda    any          its dtype    its dtype                   fp32
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
import torch.nn.functional as F

from tidegate_core.storage import Precision
from tidegate_engine.linear import Linear, PlainLinear
from tidegate_engine.linear_choice import LinearChoice
from tidegate_engine.weights import Weights

Layer = TypeVar("Layer")


class Embedding:
    """Rows of a table by token id, in the activations' dtype."""

    def __init__(self, table: torch.Tensor, dtype: torch.dtype) -> None:
        self.table = table
        self._dtype = dtype

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        return F.embedding(token_ids, self.table).to(self._dtype)


class LayerLoader:
    """Parts of one checkpoint, in the form the device computes with."""

    def __init__(
        self,
        weights: Weights,
        *,
        device: torch.device,
        dtype: torch.dtype,
        precision: Precision,
        choice: LinearChoice,
    ) -> None:
        """`dtype` is the activations'; `precision` says whether matrices may be rounded to 16 bits."""
        self._weights = weights
        self._names = frozenset(weights.names())
        self._device = device
        self._dtype = dtype
        self._precision = precision
        self._choice = choice

    def linear(self, *names: str) -> Linear:
        """One layer from the matrices of several, their outputs side by side: "…q_proj", "…k_proj", …"""
        stored = [self._weights.tensor(f"{name}.weight", self._matrix_dtype) for name in names]
        biases = [self.vector(f"{name}.bias") for name in names if f"{name}.bias" in self._names]
        return self._linear(torch.cat(stored), torch.cat(biases) if biases else None)

    def vector(self, name: str) -> torch.Tensor:
        """A norm's weight or a bias."""
        return self._weights.tensor(name, torch.float32).to(self._device)

    def embedding(self, name: str) -> Embedding:
        return Embedding(self._weights.tensor(name, self._matrix_dtype).to(self._device, copy=True), self._dtype)

    def head(self, name: str, embedding: Embedding) -> Linear:
        """Hidden state to logits; the embedding itself where the checkpoint has no such matrix."""
        is_tied = f"{name}.weight" not in self._names
        return self._linear(embedding.table, None) if is_tied else self.linear(name)

    def each(self, make: Callable[[int], Layer], num_layers: int) -> tuple[Layer, ...]:
        """Layers side by side on threads: decoding and packing hold no interpreter lock."""
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            return tuple(pool.map(make, range(num_layers)))

    @property
    def _matrix_dtype(self) -> torch.dtype | None:
        """What matrices are read as; None: as they are stored."""
        if self._device.type != "cpu":
            return self._dtype
        return torch.float32 if self._precision is Precision.BITS_32 else torch.float16

    def _linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        if self._device.type != "cpu":
            return PlainLinear(weight.to(self._device), None if bias is None else bias.to(self._dtype))
        if self._precision is Precision.BITS_32:
            return self._choice.exact(weight, bias)
        return self._choice.rounded(weight, bias)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Over the last dimension, in fp32; `weight` may have leading dimensions of its own (one row per head)."""
    return (F.rms_norm(x.float(), (x.shape[-1],), None, epsilon) * weight).to(x.dtype)
