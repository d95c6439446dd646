"""Paged attention for prefill chunks and decodes in one launch, equal to attention/reference.py.

A tile's rows are (query position x query heads of one KV head), so that a decode with a group of 4 to 8 query heads
already fills the matrix unit and K and V are read once a group:

    row m of a tile -> query token m // GROUP, query head kv_head * GROUP + m % GROUP

The grid is an upper bound, num_tokens // BLOCK_Q + num_rows, so the host never needs the rows' lengths: row r begins at
tile query_start[r] // BLOCK_Q + r, and a program finds its row by binary search. Softmax is online in float32.
split_attention.py shares the way from a tile to its queries and over its keys.
"""

import triton
import triton.language as tl


@triton.jit
def row_of_tile(query_start_ptr, tile, num_rows, BLOCK_Q: tl.constexpr):
    """Index of the row that tile number `tile` belongs to."""
    low = 0
    high = num_rows
    while low < high:
        middle = (low + high) // 2
        if tl.load(query_start_ptr + middle) // BLOCK_Q + middle <= tile:
            low = middle + 1
        else:
            high = middle
    return low - 1


@triton.jit
def attend_keys(
    query,  # [BLOCK_M, HEAD_PADDED]
    position,  # [BLOCK_M]: of each query in its sequence
    is_row,  # [BLOCK_M]
    start_key,  # multiple of TILE_KEYS
    end_key,
    kv_ptr,  # the pages, at this KV head
    scales_ptr,  # their scales, at this KV head
    table_ptr,  # the row's blocks
    scale,
    softcap,
    window,
    block_stride,
    value_stride,
    slot_stride,
    scales_block_stride,
    scales_value_stride,
    scales_slot_stride,
    HEAD_DIM: tl.constexpr,
    HEAD_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    TILE_KEYS: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
):
    """Online softmax over keys start_key .. end_key: largest score, sum of weights, weighted values (not divided)."""
    dims = tl.arange(0, HEAD_PADDED)
    is_dim = dims < HEAD_DIM
    running_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    running_sum = tl.zeros([BLOCK_M], tl.float32)
    accumulator = tl.zeros([BLOCK_M, HEAD_PADDED], tl.float32)
    for tile_start in range(start_key, end_key, TILE_KEYS):
        keys = tile_start + tl.arange(0, TILE_KEYS)
        is_key = keys < end_key
        block = tl.load(table_ptr + keys // BLOCK_SIZE, mask=is_key, other=0).to(tl.int64)
        slot = block * block_stride + (keys % BLOCK_SIZE) * slot_stride
        kv_offsets = slot[:, None] + dims[None, :]
        kv_mask = is_key[:, None] & is_dim[None, :]
        # 8-bit elements are exact in the query's dtype; a key's scale goes on its scores, a value's on the value.
        key = tl.load(kv_ptr + kv_offsets, mask=kv_mask, other=0.0).to(query.dtype)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        scale_offsets = block * scales_block_stride + (keys % BLOCK_SIZE) * scales_slot_stride
        if HAS_SCALES:
            scores = scores * tl.load(scales_ptr + scale_offsets, mask=is_key, other=0.0).to(tl.float32)[None, :]
        if HAS_SOFTCAP:
            # tanh(x) = 1 - 2 / (exp(2 x) + 1)
            scores = softcap * (1.0 - 2.0 / (tl.exp(2.0 * scores / softcap) + 1.0))
        is_visible = (keys[None, :] <= position[:, None]) & is_key[None, :] & is_row[:, None]
        if HAS_WINDOW:
            is_visible = is_visible & (keys[None, :] > position[:, None] - window)
        scores = tl.where(is_visible, scores, float("-inf"))

        new_max = tl.maximum(running_max, tl.max(scores, axis=1))
        # A row that has seen no visible key yet keeps -inf; exp(-inf - -inf) would be nan.
        safe_max = tl.where(new_max == float("-inf"), 0.0, new_max)
        weights = tl.exp(scores - safe_max[:, None])
        correction = tl.exp(running_max - safe_max)
        running_sum = running_sum * correction + tl.sum(weights, axis=1)
        value = tl.load(kv_ptr + value_stride + kv_offsets, mask=kv_mask, other=0.0)
        if HAS_SCALES:
            value_scale = tl.load(scales_ptr + scales_value_stride + scale_offsets, mask=is_key, other=0.0)
            value = value.to(tl.float32) * value_scale.to(tl.float32)[:, None]
        accumulator = accumulator * correction[:, None]
        accumulator += tl.dot(weights.to(query.dtype), value.to(query.dtype), input_precision="ieee")
        running_max = new_max
    return running_max, running_sum, accumulator


@triton.jit
def paged_attention(
    out_ptr,  # [num_tokens, num_query_heads, HEAD_DIM], contiguous
    query_ptr,  # the same shape
    kv_ptr,  # [num_blocks, 2, BLOCK_SIZE, num_kv_heads, HEAD_DIM]
    scales_ptr,  # fp16 [num_blocks, 2, BLOCK_SIZE, num_kv_heads]; anything without HAS_SCALES
    query_start_ptr,  # int32 [num_rows + 1]: first token of each row
    context_lens_ptr,  # int32 [num_rows]: keys of each row, this step's included
    block_tables_ptr,  # int32 [num_rows, max_blocks]
    num_rows,
    scale,
    softcap,  # 0: off
    window,  # 0: off; else a query sees this many keys, itself included
    token_stride,  # of query and out
    block_stride,
    value_stride,  # from K to V inside a block
    slot_stride,
    kv_head_stride,
    scales_block_stride,
    scales_value_stride,
    scales_slot_stride,
    table_stride,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_PADDED: tl.constexpr,  # power of two
    BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_Q: tl.constexpr,  # BLOCK_M // GROUP
    TILE_KEYS: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
):
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    row = row_of_tile(query_start_ptr, tile, num_rows, BLOCK_Q)
    row_start = tl.load(query_start_ptr + row)
    num_queries = tl.load(query_start_ptr + row + 1) - row_start
    first_query = (tile - (row_start // BLOCK_Q + row)) * BLOCK_Q
    if first_query >= num_queries:
        return
    past = tl.load(context_lens_ptr + row) - num_queries  # position of the row's first query

    rows_m = tl.arange(0, BLOCK_M)
    query_index = first_query + rows_m // GROUP
    head = kv_head * GROUP + rows_m % GROUP
    is_row = (rows_m // GROUP < BLOCK_Q) & (query_index < num_queries)
    dims = tl.arange(0, HEAD_PADDED)
    mask = is_row[:, None] & (dims < HEAD_DIM)[None, :]
    offsets = (row_start + query_index).to(tl.int64)[:, None] * token_stride + head[:, None] * HEAD_DIM + dims[None, :]
    query = tl.load(query_ptr + offsets, mask=mask, other=0.0)

    end_key = past + tl.minimum(first_query + BLOCK_Q, num_queries)
    start_key = 0
    if HAS_WINDOW:
        start_key = tl.maximum(past + first_query - window + 1, 0) // TILE_KEYS * TILE_KEYS
    _, weight_sum, weighted = attend_keys(
        query,
        past + query_index,
        is_row,
        start_key,
        end_key,
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
    output = weighted / tl.where(weight_sum == 0.0, 1.0, weight_sum)[:, None]
    tl.store(out_ptr + offsets, output.to(out_ptr.dtype.element_ty), mask=mask)
