"""Launches the paged attention kernels: picks tiles and splits from shapes alone, so that nothing is tuned under load.

few queries a row, too few tiles for the GPU, long contexts -> split_attention, join_splits
anything else                                               -> paged_attention
"""

from dataclasses import dataclass

import torch
import triton

from tidegate_engine.attention.base import AttentionInputs
from tidegate_engine.attention.pages import KvPages
from tidegate_engine.attention.tiles import LEAST_SPLIT_KEYS, Tiles, splits_for, tiles_for
from tidegate_engine.kernels.paged_attention import paged_attention
from tidegate_engine.kernels.split_attention import join_splits, split_attention


@dataclass(frozen=True)
class TritonAttention:
    """See attention/base.py for the contract. `query` must be contiguous."""

    num_processors: int  # streaming multiprocessors

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
        group = query.shape[1] // pages.num_kv_heads
        tiles = tiles_for(group, query.shape[2], query.itemsize, is_decode=inputs.max_query == 1)
        step = _Step(query, pages, inputs, tiles, scale, window, softcap)
        num_programs = step.num_tiles * pages.num_kv_heads
        num_splits = splits_for(inputs, window, num_programs, self.num_processors)
        return _attend_whole(step) if num_splits == 1 else _attend_in_splits(step, num_splits)


@dataclass(frozen=True)
class _Step:
    """What both kernels are launched with."""

    query: torch.Tensor
    pages: KvPages
    inputs: AttentionInputs
    tiles: Tiles
    scale: float
    window: int | None
    softcap: float | None

    @property
    def num_tiles(self) -> int:
        """An upper bound, as the kernels count them."""
        return self.query.shape[0] // self.tiles.queries + self.inputs.context_lens.shape[0]

    @property
    def tensors(self) -> tuple[torch.Tensor | int, ...]:
        """Arguments from the query to the number of rows; without scales anything may stand in their place."""
        data, scales, inputs = self.pages.data, self.pages.scales, self.inputs
        lens, tables = inputs.context_lens, inputs.block_tables
        return (self.query, data, data if scales is None else scales, inputs.query_start, lens, tables, lens.shape[0])

    @property
    def formula(self) -> tuple[float, ...]:
        return (self.scale, self.softcap or 0.0, self.window or 0)

    @property
    def strides(self) -> tuple[int, ...]:
        data, scales = self.pages.data, self.pages.scales
        of_scales = (0, 0, 0) if scales is None else scales.stride()[:3]
        return (*data.stride()[:4], *of_scales, self.inputs.block_tables.stride(0))

    @property
    def constants(self) -> dict[str, int | bool]:
        head_dim = self.query.shape[2]
        return {
            "GROUP": self.query.shape[1] // self.pages.num_kv_heads,
            "HEAD_DIM": head_dim,
            "HEAD_PADDED": triton.next_power_of_2(head_dim),
            "BLOCK_SIZE": self.pages.block_size,
            "BLOCK_M": self.tiles.rows,
            "BLOCK_Q": self.tiles.queries,
            "TILE_KEYS": self.tiles.keys,
            "HAS_SCALES": self.pages.scales is not None,
            "HAS_SOFTCAP": self.softcap is not None,
            "HAS_WINDOW": self.window is not None,
            "num_warps": self.tiles.num_warps,
            "num_stages": self.tiles.num_stages,
        }


def _attend_whole(step: _Step) -> torch.Tensor:
    out = torch.empty_like(step.query)
    grid = (step.num_tiles, step.pages.num_kv_heads)
    paged_attention[grid](out, *step.tensors, *step.formula, step.query.stride(0), *step.strides, **step.constants)
    return out


def _attend_in_splits(step: _Step, num_splits: int) -> torch.Tensor:
    num_tokens, num_heads, head_dim = step.query.shape
    parts = step.query.new_empty((num_tokens, num_heads, num_splits, head_dim), dtype=torch.float32)
    maxima, sums = (parts.new_empty((num_tokens, num_heads, num_splits)) for _ in range(2))
    out = torch.empty_like(step.query)
    grid = (step.num_tiles, step.pages.num_kv_heads, num_splits)
    split_attention[grid](
        parts,
        maxima,
        sums,
        *step.tensors,
        num_splits,
        *step.formula,
        num_heads,
        *step.strides,
        LEAST_KEYS=LEAST_SPLIT_KEYS,
        **step.constants,
    )
    lens = step.inputs.context_lens
    join_splits[num_tokens, num_heads](
        out, parts, maxima, sums, step.inputs.query_start, lens, lens.shape[0], num_splits, step.window or 0, num_heads,
        HEAD_DIM=head_dim,
        HEAD_PADDED=triton.next_power_of_2(head_dim),
        SPLITS_PADDED=triton.next_power_of_2(num_splits),
        TILE_KEYS=step.tiles.keys,
        LEAST_KEYS=LEAST_SPLIT_KEYS,
        HAS_WINDOW=step.window is not None,
    )  # fmt: skip
    return out
