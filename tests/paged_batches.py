"""Random ragged batches over a paged cache, and what attention over them must give, written the plainest way."""

from dataclasses import dataclass

import torch

from tidegate_engine.attention.base import AttentionInputs
from tidegate_engine.attention.pages import KvPages, quantised, sides_of

BLOCK_SIZE = 16


@dataclass(frozen=True)
class PagedBatch:
    query: torch.Tensor
    pages: KvPages
    inputs: AttentionInputs
    lengths: tuple[tuple[int, int], ...]  # (query tokens, context) of each row


def random_batch(
    lengths: tuple[tuple[int, int], ...],
    *,
    num_query_heads: int,
    num_kv_heads: int,
    head_dim: int,
    dtype: torch.dtype = torch.float32,
    kv_dtype: torch.dtype | None = None,
    device: str = "cpu",
    seed: int = 0,
) -> PagedBatch:
    """Rows of (query tokens, context), their blocks scattered over the cache; unused table entries are 0.

    `kv_dtype` is an 8-bit one; None: the cache is as wide as the query.
    """
    generator = torch.Generator().manual_seed(seed)
    num_blocks = [-(-context // BLOCK_SIZE) for _, context in lengths]
    order = torch.randperm(sum(num_blocks) + 3, generator=generator).tolist()
    tables = torch.zeros(len(lengths), max(num_blocks), dtype=torch.int32)
    slots = []
    for row, (queries, context) in enumerate(lengths):
        blocks = [order.pop() for _ in range(num_blocks[row])]
        tables[row, : len(blocks)] = torch.tensor(blocks)
        slots += [blocks[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE for p in range(context - queries, context)]
    starts = torch.tensor([0, *(queries for queries, _ in lengths)]).cumsum(0).to(torch.int32)
    inputs = AttentionInputs(
        query_start=starts.to(device),
        context_lens=torch.tensor([context for _, context in lengths], dtype=torch.int32, device=device),
        block_tables=tables.to(device),
        slot_mapping=torch.tensor(slots, device=device),
        max_query=max(queries for queries, _ in lengths),
        max_context=max(context for _, context in lengths),
    )
    cache_shape = (sum(num_blocks) + 3, 2, BLOCK_SIZE, num_kv_heads, head_dim)
    cache = torch.randn(cache_shape, generator=generator).to(device)
    pages = KvPages(cache.to(dtype)) if kv_dtype is None else KvPages(*quantised(cache, kv_dtype))
    return PagedBatch(
        query=torch.randn(int(starts[-1]), num_query_heads, head_dim, generator=generator).to(device, dtype),
        pages=pages,
        inputs=inputs,
        lengths=lengths,
    )


def dense_attention(
    batch: PagedBatch, *, scale: float, window: int | None = None, softcap: float | None = None
) -> torch.Tensor:
    """One row and one query head at a time, in float64, over what the cache holds."""
    out = torch.empty_like(batch.query, dtype=torch.float64)
    group = batch.query.shape[1] // batch.pages.num_kv_heads
    start = 0
    for row, (queries, context) in enumerate(batch.lengths):
        blocks = batch.inputs.block_tables[row, : -(-context // BLOCK_SIZE)].long()
        sides = batch.pages.gathered(sides_of(blocks), torch.float64).chunk(2)
        keys, values = (side.flatten(0, 1)[:context] for side in sides)
        positions = torch.arange(context - queries, context, device=keys.device)[:, None]
        key_positions = torch.arange(context, device=keys.device)[None, :]
        is_visible = key_positions <= positions
        if window is not None:
            is_visible &= key_positions > positions - window
        for head in range(batch.query.shape[1]):
            scores = batch.query[start : start + queries, head].double() @ keys[:, head // group].T * scale
            if softcap is not None:
                scores = softcap * torch.tanh(scores / softcap)
            weights = scores.masked_fill(~is_visible, float("-inf")).softmax(-1)
            out[start : start + queries, head] = weights @ values[:, head // group]
        start += queries
    return out
