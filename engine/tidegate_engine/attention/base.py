"""The contract of paged attention: what a step hands to every implementation, and what it gets back.

A step is a ragged batch: row r owns the query tokens query_start[r]:query_start[r + 1], which are the last ones of its
context. Prefill chunks and decodes (one query token) mix freely in one call.

    context of row r   |<-- computed in earlier steps -->|<-- query tokens of this step -->|
                       0                                                                   context_lens[r]
"""

from dataclasses import dataclass
from typing import Protocol

import torch

from tidegate_core.errors import BadLaunch
from tidegate_core.launch import AttentionKind, Device
from tidegate_engine.attention.pages import KvPages


@dataclass(frozen=True, eq=False)  # compared and hashed by identity: implementations may derive things once a step
class AttentionInputs:
    """Where a step's tokens stand and where their keys and values lie. Built once a step, read by every layer.

    Entries of block_tables beyond a row's context are 0 and must not influence the result.
    """

    query_start: torch.Tensor  # int32 [rows + 1], begins with 0, ends with the number of tokens
    context_lens: torch.Tensor  # int32 [rows]: keys of the row, this step's included; >= its query tokens >= 1
    block_tables: torch.Tensor  # int32 [rows, at least ceil(max_context / block_size)]
    slot_mapping: torch.Tensor  # int64 [tokens]: block * block_size + offset where a token's key and value are written
    max_query: int  # most query tokens of a row
    max_context: int  # largest of context_lens


class Attention(Protocol):
    """One implementation, as a plain callable; keys and values of this step already stand in the cache."""

    def __call__(
        self,
        query: torch.Tensor,
        pages: KvPages,
        inputs: AttentionInputs,
        *,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
    ) -> torch.Tensor:
        """Causal grouped-query attention over a paged cache.

        Args:
            query: [tokens, query_heads, head_dim]; query head h reads key-value head h // (query_heads / kv_heads).
            pages: the layer's keys and values. Their dtype may differ from the query's; sums are taken in fp32.
            inputs: the step.
            scale: factor of the scores, before softcap.
            window: a query at position p sees positions p - window + 1 .. p; None: all up to p.
            softcap: scores s become softcap * tanh(s / softcap); None: left alone.

        Returns:
            [tokens, query_heads, head_dim] in the query's dtype.
        """
        ...


def choose_attention(kind: AttentionKind, device: Device) -> AttentionKind:
    """The implementation behind `auto` on CUDA: the Triton kernel. On CPU it stays `auto`: what kernels there are.

    Raises BadLaunch for the kernel on a CPU, which could only interpret it.
    """
    if kind is AttentionKind.TRITON and device is Device.CPU:
        raise BadLaunch("--attention triton needs --device cuda; leave it out, or give --attention auto")
    return AttentionKind.TRITON if kind is AttentionKind.AUTO and device is Device.CUDA else kind
