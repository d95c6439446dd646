"""Rotates a step's queries and keys, and puts keys and values where they belong in the pages: one call, not eleven.

    [query | key] and [value] heads of a token  ->  queries, side by side;  keys and values in the layer's pages

Threads claim tokens. What becomes of a vector never depends on others. Must equal: heads.plain_placed.
"""

from typing import Any

import numpy as np
import torch
from numba import cfunc, njit

from tidegate_engine.attention.pages import KvPages
from tidegate_engine.compute.rope import Rotation
from tidegate_engine.cpu_kernels.decode_tiles import ELEMENT_BYTES
from tidegate_engine.cpu_kernels.memory import (
    address_of,
    as_bits,
    as_float,
    claim,
    load_float,
    load_half,
    load_int64,
    nearest,
    stack,
    store_float,
    store_half,
    store_int8,
)
from tidegate_engine.cpu_kernels.team import Team

ALONE_ELEMENTS = 1 << 15  # fewer are done before a team would have begun
MOST_DIM = 512
LARGEST = np.float32(127)
ABSOLUTE_BITS = 0x7FFFFFFF

vector_stack = stack(4 * MOST_DIM)


class HeadPlacement:
    """For one kind of elements."""

    def __init__(self, element: str, team: Team) -> None:
        self._address = compiled(element).address
        self._team = team

    def __call__(
        self, heads: torch.Tensor, values: torch.Tensor, rotation: Rotation, slots: torch.Tensor, pages: KvPages
    ) -> torch.Tensor:
        """fp32 [tokens, query and key heads, head_dim] and [tokens, key heads, head_dim] -> queries."""
        num_tokens, num_heads, head_dim = heads.shape
        num_queries = num_heads - pages.num_kv_heads
        queries = torch.empty((num_tokens, num_queries, head_dim))
        self._team.run(
            self._address,
            heads.data_ptr(),
            4 * heads.stride(0),
            values.data_ptr(),
            4 * values.stride(0),
            num_tokens,
            num_queries,
            pages.num_kv_heads,
            head_dim,
            rotation.cos.data_ptr(),
            rotation.sin.data_ptr(),
            slots.data_ptr(),
            pages.block_size,
            pages.data.data_ptr(),
            0 if pages.scales is None else pages.scales.data_ptr(),
            queries.data_ptr(),
            is_alone=heads.numel() < ALONE_ELEMENTS,
        )
        return queries

    def serves(self, heads: torch.Tensor, values: torch.Tensor) -> bool:
        """Whether they are fp32, as long as there is room for, and a token's lie side by side."""
        head_dim = heads.shape[2]
        lies_right = all(x.stride()[1:] == (head_dim, 1) and x.dtype is torch.float32 for x in (heads, values))
        return lies_right and head_dim <= MOST_DIM


@njit(error_model="numpy")
def _rotate(vector, cos, sin, half, result):
    """Pairs are (i, i + half); the first half of sin is negated."""
    for place in range(half):
        one, other = load_float(vector, place), load_float(vector, place + half)
        store_float(result, place, one * load_float(cos, place) + other * load_float(sin, place))
        store_float(result, place + half, other * load_float(cos, place + half) + one * load_float(sin, place + half))


@njit(error_model="numpy")
def _keep_floats(vector, dim, data, scales, index):
    for place in range(dim):
        store_float(data, index * dim + place, load_float(vector, place))


@njit(error_model="numpy")
def _keep_halves(vector, dim, data, scales, index):
    for place in range(dim):
        store_half(data, index * dim + place, load_float(vector, place))


@njit(error_model="numpy")
def _keep_int8(vector, dim, data, scales, index):
    """See pages.quantised. What is not finite has the largest bits of all, and makes the scale infinite or NaN."""
    bits = as_bits(np.float32(0))
    for place in range(dim):
        bits = max(bits, as_bits(load_float(vector, place)) & ABSOLUTE_BITS)
    store_half(scales, index, as_float(bits) / LARGEST)
    kept = load_half(scales, index)
    step = kept if kept > 0 else np.float32(np.inf)
    for place in range(dim):
        steps = min(max(load_float(vector, place) / step, -LARGEST), LARGEST)
        store_int8(data, index * dim + place, nearest(steps))


_KEEP = {"float32": _keep_floats, "float16": _keep_halves, "int8": _keep_int8}


def compiled(element: str) -> Any:
    """For a cache with such elements, int8 ones with scales. Words:

    query and key heads, bytes from a token to the next, value heads, bytes alike, tokens, query heads, key-value heads,
    head_dim, cos, sin (fp32 [tokens, head_dim]), slots (int64 [tokens]), block size, data, scales, queries.
    """
    keep = _KEEP[element]
    assert element in ELEMENT_BYTES

    @njit(error_model="numpy")
    def place_token(
        heads, values, num_queries, num_kv_heads, head_dim, cos, sin, slot, block_size, data, scales, queries
    ):
        vector_bytes, rotated, half = 4 * head_dim, vector_stack(), head_dim // 2
        for head in range(num_queries):
            _rotate(heads + head * vector_bytes, cos, sin, half, queries + head * vector_bytes)
        row = (slot // block_size * 2) * block_size + slot % block_size
        for head in range(num_kv_heads):
            _rotate(heads + (num_queries + head) * vector_bytes, cos, sin, half, rotated)
            keep(rotated, head_dim, data, scales, row * num_kv_heads + head)
            keep(values + head * vector_bytes, head_dim, data, scales, (row + block_size) * num_kv_heads + head)

    @cfunc("void(voidptr)", nopython=True, error_model="numpy")
    def kernel(words):
        shared = address_of(words)
        heads, head_stride, values = load_int64(shared, 1), load_int64(shared, 2), load_int64(shared, 3)
        value_stride, num_tokens, num_queries = load_int64(shared, 4), load_int64(shared, 5), load_int64(shared, 6)
        num_kv_heads, head_dim, cos = load_int64(shared, 7), load_int64(shared, 8), load_int64(shared, 9)
        sin, slots, block_size = load_int64(shared, 10), load_int64(shared, 11), load_int64(shared, 12)
        data, scales, queries = load_int64(shared, 13), load_int64(shared, 14), load_int64(shared, 15)
        token = claim(shared, 1)
        while token < num_tokens:
            place_token(
                heads + token * head_stride, values + token * value_stride, num_queries, num_kv_heads, head_dim,
                cos + token * 4 * head_dim, sin + token * 4 * head_dim, load_int64(slots, token), block_size,
                data, scales, queries + token * num_queries * 4 * head_dim,
            )  # fmt: skip
            token = claim(shared, 1)

    return kernel
