"""RMS norm in fp32, a row after the other: one call where torch takes six. Must equal: layers.plain_rms_norm.

Every row's sum has the same order, whatever is beside it.
"""

import numpy as np
import torch
from numba import cfunc, njit

from tidegate_engine.cpu_kernels.memory import address_of, claim, load_float, load_int64, store_float
from tidegate_engine.cpu_kernels.team import Team, float_bits

ALONE_ELEMENTS = 1 << 15  # fewer are done before a team would have begun


class RmsNormKernel:
    """See layers.rms_norm."""

    def __init__(self, team: Team) -> None:
        self._team = team

    def __call__(self, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        """fp32 [tokens, …, dim] with a weight of its last dimensions, whose elements lie side by side."""
        result = torch.empty(x.shape)
        num_tokens, dim = x.shape[0], x.shape[-1]
        self._team.run(
            kernel.address,
            x.data_ptr(),
            4 * x.stride(0),
            num_tokens,
            x.numel() // (num_tokens * dim),
            dim,
            weight.data_ptr(),
            weight.numel() // dim,
            float_bits(epsilon),
            result.data_ptr(),
            is_alone=x.numel() < ALONE_ELEMENTS,
        )
        return result


@njit(error_model="numpy", fastmath={"contract", "reassoc", "nsz"})
def _sum_of_squares(x, dim):
    total = np.float32(0)
    for place in range(dim):
        total += load_float(x, place) * load_float(x, place)
    return total


@njit(error_model="numpy")
def _normalise(x, dim, weight, epsilon, result):
    scale = np.float32(1) / np.sqrt(_sum_of_squares(x, dim) / np.float32(dim) + epsilon)
    for place in range(dim):
        store_float(result, place, load_float(x, place) * scale * load_float(weight, place))


@cfunc("void(voidptr)", nopython=True, error_model="numpy")
def kernel(words):
    shared = address_of(words)
    first, stride, num_tokens = load_int64(shared, 1), load_int64(shared, 2), load_int64(shared, 3)
    num_heads, dim, weights = load_int64(shared, 4), load_int64(shared, 5), load_int64(shared, 6)
    num_weights, epsilon, result = load_int64(shared, 7), load_float(shared, 2 * 8), load_int64(shared, 9)
    token = claim(shared, 1)
    while token < num_tokens:
        for head in range(num_heads):
            x, weight = first + token * stride + 4 * dim * head, weights + 4 * dim * (head % num_weights)
            _normalise(x, dim, weight, epsilon, result + 4 * dim * (token * num_heads + head))
        token = claim(shared, 1)
