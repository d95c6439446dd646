"""Attention of rows with one query token each, straight over the pages: nothing is gathered, padded or masked.

Threads claim (row, key-value head). Softmax goes over tiles of a few blocks from left to right:

    scores of a tile -> largest so far -> weights -> output = output * kept + weights x values

A row's result does not depend on other rows. Must equal: attention/reference.py.
"""

import math
from typing import Any

import numpy as np
import torch
from numba import cfunc, njit

from tidegate_engine.attention.pages import KvPages
from tidegate_engine.cpu_kernels.decode_tiles import DIM_STEP, ELEMENT_BYTES, KEYS, scores_tile, values_tile
from tidegate_engine.cpu_kernels.exponential import exponential
from tidegate_engine.cpu_kernels.memory import (
    address_of,
    claim,
    load_float,
    load_half,
    load_int32,
    load_int64,
    stack,
    store_float,
)
from tidegate_engine.cpu_kernels.team import Team, float_bits

TILE_KEYS = 64  # a multiple of the block size
MOST_GROUP = 32
SCORES_BYTES = 4 * MOST_GROUP * TILE_KEYS
TILE_BYTES = 4 * TILE_KEYS

scores_stack, totals_stack, maxima_stack = stack(SCORES_BYTES), stack(4 * MOST_GROUP), stack(4 * MOST_GROUP)


class DecodeKernel:
    """For one kind of elements."""

    def __init__(self, element: str, team: Team) -> None:
        self._address = compiled(element).address
        self._team = team

    def __call__(
        self,
        query: torch.Tensor,
        pages: KvPages,
        decodes: torch.Tensor,
        tables: torch.Tensor,
        result: torch.Tensor,
        *,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
    ) -> None:
        """`decodes` are int32 [rows, (row of tables, token, context)]; `result` is written for their tokens only."""
        self._team.run(
            self._address,
            query.data_ptr(),
            result.data_ptr(),
            decodes.data_ptr(),
            decodes.shape[0],
            tables.data_ptr(),
            tables.shape[1],
            pages.data.data_ptr(),
            0 if pages.scales is None else pages.scales.data_ptr(),
            pages.num_kv_heads,
            query.shape[1] // pages.num_kv_heads,
            query.shape[2],
            pages.block_size,
            window or 0,
            float_bits(scale),
            float_bits(softcap or 0.0),
        )

    def serves(self, query: torch.Tensor, pages: KvPages) -> bool:
        """Whether the tiles fit these heads and blocks."""
        group, head_dim = query.shape[1] // pages.num_kv_heads, query.shape[2]
        has_room = group <= MOST_GROUP and TILE_KEYS % pages.block_size == 0
        return has_room and head_dim % DIM_STEP == 0 and query.dtype is torch.float32


@njit(error_model="numpy", fastmath={"contract", "reassoc", "nsz"})
def _weigh(scores, num_keys, most):
    """Scores become weights; returns their sum."""
    total = np.float32(0)
    for key in range(num_keys):
        weight = exponential(load_float(scores, key) - most)
        store_float(scores, key, weight)
        total += weight
    return total


@njit(error_model="numpy")
def _largest(scores, num_keys, most):
    for key in range(num_keys):
        score = load_float(scores, key)
        most = score if score > most else most  # noqa: FURB136  # max() also orders zeros and NaN, and is slower
    return most


@njit(error_model="numpy")
def _adjust(scores, num_keys, scale, softcap):
    for key in range(num_keys):
        score = load_float(scores, key) * scale
        store_float(scores, key, score if softcap == 0 else softcap * np.float32(math.tanh(score / softcap)))


@njit(error_model="numpy")
def _fill(values, num_values, value):
    for place in range(num_values):
        store_float(values, place, value)


@njit(error_model="numpy")
def _multiply(values, num_values, factor):
    for place in range(num_values):
        store_float(values, place, load_float(values, place) * factor)


def compiled(element: str) -> Any:
    """For a cache with such elements, int8 ones with scales. Words:

    query, result, items (int32 [row of the block table, token, context]), number of items, block tables, their width,
    data, scales, key-value heads, group, head_dim, block size, window or 0, bits of scale, bits of softcap or 0.
    """
    element_bytes, has_scales = ELEMENT_BYTES[element], element == "int8"
    score_one, score_two = scores_tile(element, 1), scores_tile(element, 2)
    add_one, add_two, add_four = (values_tile(element, num_heads) for num_heads in (1, 2, 4))

    @njit(error_model="numpy")
    def score_block(query, keys, stride, num_keys, group, head_dim, scores):
        """Also of up to three keys behind the last one: their places exist, and nobody reads the scores."""
        for key in range(0, num_keys, KEYS):
            place, to = keys + key * stride, scores + key * 4
            head = 0
            while head + 2 <= group:
                score_two(query + head * head_dim * 4, place, stride, head_dim, to + head * TILE_BYTES, TILE_BYTES)
                head += 2
            if head < group:
                score_one(query + head * head_dim * 4, place, stride, head_dim, to + head * TILE_BYTES, TILE_BYTES)

    @njit(error_model="numpy")
    def add_block(weights, values, stride, num_keys, group, head_dim, output):
        head = 0
        while head + 4 <= group:
            share, to = weights + head * TILE_BYTES, output + head * head_dim * 4
            add_four(share, TILE_BYTES, values, stride, num_keys, head_dim, to)
            head += 4
        while head + 2 <= group:
            share, to = weights + head * TILE_BYTES, output + head * head_dim * 4
            add_two(share, TILE_BYTES, values, stride, num_keys, head_dim, to)
            head += 2
        if head < group:
            share, to = weights + head * TILE_BYTES, output + head * head_dim * 4
            add_one(share, TILE_BYTES, values, stride, num_keys, head_dim, to)

    @njit(error_model="numpy")
    def scale_scores(scores, group, num_keys, scales, stride):
        """By the scales of keys, or of values: one of each vector."""
        for key in range(num_keys):
            factor = load_half(scales, key * stride)
            for head in range(group):
                place = head * TILE_KEYS + key
                store_float(scores, place, load_float(scores, place) * factor)

    @njit(error_model="numpy")
    def score_tile(query, scores, start, end, table, data, scales, num_kv_heads, kv_head, group, head_dim, block_size):
        stride, side = num_kv_heads * head_dim * element_bytes, block_size * num_kv_heads
        position = start
        while position < end:
            block, offset = load_int32(table, position // block_size), position % block_size
            num_keys = min(block_size - offset, end - position)
            vector = block * 2 * side + offset * num_kv_heads + kv_head
            to = scores + 4 * (position - start)
            score_block(query, data + vector * head_dim * element_bytes, stride, num_keys, group, head_dim, to)
            if has_scales:
                scale_scores(to, group, num_keys, scales + 2 * vector, num_kv_heads)
            position += num_keys

    @njit(error_model="numpy")
    def add_tile(output, weights, start, end, table, data, scales, num_kv_heads, kv_head, group, head_dim, block_size):
        stride, side = num_kv_heads * head_dim * element_bytes, block_size * num_kv_heads
        position = start
        while position < end:
            block, offset = load_int32(table, position // block_size), position % block_size
            num_keys = min(block_size - offset, end - position)
            vector = (block * 2 + 1) * side + offset * num_kv_heads + kv_head
            shares = weights + 4 * (position - start)
            if has_scales:
                scale_scores(shares, group, num_keys, scales + 2 * vector, num_kv_heads)
            add_block(shares, data + vector * head_dim * element_bytes, stride, num_keys, group, head_dim, output)
            position += num_keys

    @njit(error_model="numpy")
    def attend(
        query, output, table, context, data, scales, num_kv_heads, kv_head, group, head_dim, block_size, window,
        scale, softcap,
    ):  # fmt: skip
        scores, totals, maxima = scores_stack(), totals_stack(), maxima_stack()
        _fill(totals, group, 0.0)
        _fill(maxima, group, -np.inf)
        _fill(output, group * head_dim, 0.0)
        start = max(0, context - window) if window > 0 else 0
        while start < context:
            end = min(context, (start // block_size) * block_size + TILE_KEYS)
            score_tile(
                query, scores, start, end, table, data, scales, num_kv_heads, kv_head, group, head_dim, block_size
            )
            for head in range(group):
                of_head, before = scores + head * TILE_BYTES, load_float(maxima, head)
                _adjust(of_head, end - start, scale, softcap)
                most = _largest(of_head, end - start, before)
                kept = exponential(before - most) if before > -np.inf else np.float32(0)
                store_float(maxima, head, most)
                store_float(totals, head, load_float(totals, head) * kept + _weigh(of_head, end - start, most))
                _multiply(output + head * head_dim * 4, head_dim, kept)
            add_tile(
                output, scores, start, end, table, data, scales, num_kv_heads, kv_head, group, head_dim, block_size
            )
            start = end
        for head in range(group):
            _multiply(output + head * head_dim * 4, head_dim, np.float32(1) / load_float(totals, head))

    @cfunc("void(voidptr)", nopython=True, error_model="numpy")
    def kernel(words):
        shared = address_of(words)
        query, result, items = load_int64(shared, 1), load_int64(shared, 2), load_int64(shared, 3)
        num_items, tables, width = load_int64(shared, 4), load_int64(shared, 5), load_int64(shared, 6)
        data, scales, num_kv_heads = load_int64(shared, 7), load_int64(shared, 8), load_int64(shared, 9)
        group, head_dim, block_size = load_int64(shared, 10), load_int64(shared, 11), load_int64(shared, 12)
        window = load_int64(shared, 13)
        scale, softcap = load_float(shared, 2 * 14), load_float(shared, 2 * 15)
        work = claim(shared, 1)
        while work < num_items * num_kv_heads:
            item, kv_head = items + work // num_kv_heads * 12, work % num_kv_heads
            row, token, context = load_int32(item, 0), load_int32(item, 1), load_int32(item, 2)
            place = (token * num_kv_heads + kv_head) * group * head_dim * 4
            attend(
                query + place, result + place, tables + row * width * 4, context, data, scales, num_kv_heads, kv_head,
                group, head_dim, block_size, window, scale, softcap,
            )  # fmt: skip
            work = claim(shared, 1)

    return kernel
