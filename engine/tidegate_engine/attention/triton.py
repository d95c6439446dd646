"""Launches the paged attention kernel: picks tiles from shapes, checks what the kernel cannot serve."""

import torch
import triton

from tidegate_engine.attention.base import AttentionInputs
from tidegate_engine.kernels.paged_attention import paged_attention

MIN_TILE_ROWS = 16  # the smallest M of tl.dot


def attend(
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    inputs: AttentionInputs,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> torch.Tensor:
    """See attention/base.py for the contract. `query` must be contiguous."""
    num_tokens, num_query_heads, head_dim = query.shape
    _, _, block_size, num_kv_heads, _ = kv_cache.shape
    group = num_query_heads // num_kv_heads
    tile_rows = tile_rows_for(group, inputs.max_query, head_dim)
    tile_queries = tile_rows // group
    num_rows = inputs.context_lens.shape[0]
    out = torch.empty_like(query)
    grid = (num_tokens // tile_queries + num_rows, num_kv_heads)
    paged_attention[grid](
        out,
        query,
        kv_cache,
        inputs.query_start,
        inputs.context_lens,
        inputs.block_tables,
        num_rows,
        scale,
        softcap or 0.0,
        window or 0,
        query.stride(0),
        kv_cache.stride(0),
        kv_cache.stride(1),
        kv_cache.stride(2),
        kv_cache.stride(3),
        inputs.block_tables.stride(0),
        GROUP=group,
        HEAD_DIM=head_dim,
        HEAD_PADDED=triton.next_power_of_2(head_dim),
        BLOCK_SIZE=block_size,
        BLOCK_M=tile_rows,
        BLOCK_Q=tile_queries,
        TILE_KEYS=tile_keys_for(inputs.max_query, head_dim),
        HAS_SOFTCAP=softcap is not None,
        HAS_WINDOW=window is not None,
        num_warps=4 if tile_rows <= 64 else 8,
    )
    return out


def tile_rows_for(group: int, max_query: int, head_dim: int) -> int:
    """Rows of a query tile: small for decodes, larger for prefill while registers last."""
    smallest = max(MIN_TILE_ROWS, int(triton.next_power_of_2(group)))
    if max_query == 1:
        return smallest
    return max(smallest, 64 if head_dim <= 128 else 32)


def tile_keys_for(max_query: int, head_dim: int) -> int:
    """Keys a tile reads at once; shared memory bounds it for wide heads."""
    if head_dim > 128:
        return 32
    return 32 if max_query == 1 else 64
