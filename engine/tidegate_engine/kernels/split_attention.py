"""Paged attention of a few queries over long contexts, equal to attention/reference.py: keys in splits, side by side.

A decode has one tile a KV head, too few programs to fill a GPU, and each walks its whole context alone. Here several
programs share a context, and a second launch puts their parts together:

    split_attention    (tile, KV head, split) -> largest score, sum of weights, weighted values, in float32
    join_splits        (token, query head)    -> softmax over all splits

Every row has as many splits as its own context needs, at most num_splits and none shorter than LEAST_KEYS: a short
sequence beside a long one is computed once and not cut into crumbs.
"""

import triton
import triton.language as tl

from tidegate_engine.kernels.paged_attention import attend_keys, row_of_tile


@triton.jit
def keys_of_splits(
    past, num_queries, window, num_splits, TILE_KEYS: tl.constexpr, LEAST_KEYS: tl.constexpr, HAS_WINDOW: tl.constexpr
):
    """First key that a row sees, and how many keys each of its splits has: multiples of TILE_KEYS."""
    first_key = 0
    if HAS_WINDOW:
        first_key = tl.maximum(past - window + 1, 0) // TILE_KEYS * TILE_KEYS
    equal_share = (past + num_queries - first_key + num_splits - 1) // num_splits
    split_keys = (tl.maximum(equal_share, LEAST_KEYS) + TILE_KEYS - 1) // TILE_KEYS * TILE_KEYS
    return first_key, split_keys


@triton.jit
def split_attention(
    parts_ptr,  # fp32 [num_tokens, num_query_heads, num_splits, HEAD_DIM]: weighted values
    maxima_ptr,  # fp32 [num_tokens, num_query_heads, num_splits]: largest scores
    sums_ptr,  # the same shape: sums of weights
    query_ptr,  # [num_tokens, num_query_heads, HEAD_DIM], contiguous
    kv_ptr,  # [num_blocks, 2, BLOCK_SIZE, num_kv_heads, HEAD_DIM]
    scales_ptr,  # fp16 [num_blocks, 2, BLOCK_SIZE, num_kv_heads]; anything without HAS_SCALES
    query_start_ptr,
    context_lens_ptr,
    block_tables_ptr,
    num_rows,
    num_splits,
    scale,
    softcap,
    window,
    num_query_heads,
    block_stride,
    value_stride,
    slot_stride,
    kv_head_stride,
    scales_block_stride,
    scales_value_stride,
    scales_slot_stride,
    table_stride,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    TILE_KEYS: tl.constexpr,
    LEAST_KEYS: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
):
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    row = row_of_tile(query_start_ptr, tile, num_rows, BLOCK_Q)
    row_start = tl.load(query_start_ptr + row)
    num_queries = tl.load(query_start_ptr + row + 1) - row_start
    first_query = (tile - (row_start // BLOCK_Q + row)) * BLOCK_Q
    if first_query >= num_queries:
        return
    past = tl.load(context_lens_ptr + row) - num_queries
    first_key, split_keys = keys_of_splits(past, num_queries, window, num_splits, TILE_KEYS, LEAST_KEYS, HAS_WINDOW)
    start_key = first_key + split * split_keys
    if start_key >= past + num_queries:
        return

    rows_m = tl.arange(0, BLOCK_M)
    query_index = first_query + rows_m // GROUP
    head = kv_head * GROUP + rows_m % GROUP
    is_row = (rows_m // GROUP < BLOCK_Q) & (query_index < num_queries)
    dims = tl.arange(0, HEAD_PADDED)
    mask = is_row[:, None] & (dims < HEAD_DIM)[None, :]
    vector = (row_start + query_index).to(tl.int64) * num_query_heads + head
    query = tl.load(query_ptr + vector[:, None] * HEAD_DIM + dims[None, :], mask=mask, other=0.0)

    last_key = past + tl.minimum(first_query + BLOCK_Q, num_queries)  # of the tile: empty where all is still to come
    largest, weight_sum, weighted = attend_keys(
        query,
        past + query_index,
        is_row,
        start_key,
        tl.minimum(start_key + split_keys, last_key),
        kv_ptr + kv_head * kv_head_stride,
        scales_ptr + kv_head,
        block_tables_ptr + row * table_stride,
        scale,
        softcap,
        window,
        block_stride,
        value_stride,
        slot_stride,
        scales_block_stride,
        scales_value_stride,
        scales_slot_stride,
        HEAD_DIM,
        HEAD_PADDED,
        BLOCK_SIZE,
        BLOCK_M,
        TILE_KEYS,
        HAS_SCALES,
        HAS_SOFTCAP,
        HAS_WINDOW,
    )
    place = vector * num_splits + split
    tl.store(maxima_ptr + place, largest, mask=is_row)
    tl.store(sums_ptr + place, weight_sum, mask=is_row)
    tl.store(parts_ptr + place[:, None] * HEAD_DIM + dims[None, :], weighted, mask=mask)


@triton.jit
def join_splits(
    out_ptr,  # [num_tokens, num_query_heads, HEAD_DIM], contiguous
    parts_ptr,
    maxima_ptr,
    sums_ptr,
    query_start_ptr,
    context_lens_ptr,
    num_rows,
    num_splits,
    window,
    num_query_heads,
    HEAD_DIM: tl.constexpr,
    HEAD_PADDED: tl.constexpr,
    SPLITS_PADDED: tl.constexpr,
    TILE_KEYS: tl.constexpr,
    LEAST_KEYS: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
):
    token = tl.program_id(0)
    row = _row_of_token(query_start_ptr, token, num_rows)
    row_start = tl.load(query_start_ptr + row)
    num_queries = tl.load(query_start_ptr + row + 1) - row_start
    past = tl.load(context_lens_ptr + row) - num_queries
    first_key, split_keys = keys_of_splits(past, num_queries, window, num_splits, TILE_KEYS, LEAST_KEYS, HAS_WINDOW)
    splits = tl.arange(0, SPLITS_PADDED)
    is_split = (splits < num_splits) & (first_key + splits * split_keys < past + num_queries)
    vector = token.to(tl.int64) * num_query_heads + tl.program_id(1)
    place = vector * num_splits + splits
    maxima = tl.load(maxima_ptr + place, mask=is_split, other=float("-inf"))
    factors = tl.exp(maxima - tl.max(maxima, axis=0))  # a query sees at least itself, so the largest is a number
    weight_sum = tl.sum(tl.load(sums_ptr + place, mask=is_split, other=0.0) * factors, axis=0)
    dims = tl.arange(0, HEAD_PADDED)
    is_dim = dims < HEAD_DIM
    parts_mask = is_split[:, None] & is_dim[None, :]
    parts = tl.load(parts_ptr + place[:, None] * HEAD_DIM + dims[None, :], mask=parts_mask, other=0.0)
    output = tl.sum(parts * factors[:, None], axis=0) / weight_sum
    tl.store(out_ptr + vector * HEAD_DIM + dims, output.to(out_ptr.dtype.element_ty), mask=is_dim)


@triton.jit
def _row_of_token(query_start_ptr, token, num_rows):
    """Index of the row that a token of the step belongs to."""
    low = 0
    high = num_rows
    while low < high:
        middle = (low + high) // 2
        if tl.load(query_start_ptr + middle) <= token:
            low = middle + 1
        else:
            high = middle
    return low - 1
