"""activation(gate) * up of rows that hold gate and up side by side, computed in place of gate.

Both activations are x * sigmoid(…): silu of x itself, the approximate gelu of a cubic in x. Must equal: layers.py's
plain_gated_silu and plain_gated_gelu.
"""

import math

import numpy as np
import torch
from numba import cfunc, njit

from tidegate_engine.cpu_kernels.exponential import sigmoid
from tidegate_engine.cpu_kernels.memory import address_of, claim, load_float, load_int64, store_float
from tidegate_engine.cpu_kernels.team import Team

ALONE_ELEMENTS = 1 << 15  # fewer are done before a team would have begun
LINEAR = np.float32(2 * math.sqrt(2 / math.pi))  # tanh(x) is 2 * sigmoid(2 * x) - 1
CUBIC = np.float32(2 * math.sqrt(2 / math.pi) * 0.044715)


class GateKernel:
    """fp32 [rows, gate and up] -> [rows, gate], a view."""

    def __init__(self, team: Team, *, is_gelu: bool) -> None:
        self._team = team
        self._is_gelu = is_gelu

    def __call__(self, gate_up: torch.Tensor) -> torch.Tensor:
        num_rows, width = gate_up.shape[0], gate_up.shape[1] // 2
        words = (gate_up.data_ptr(), gate_up.stride(0) * 4, num_rows, width, self._is_gelu)
        self._team.run(kernel.address, *words, is_alone=num_rows * width < ALONE_ELEMENTS)
        return gate_up[:, :width]


@njit(error_model="numpy")
def _silu(gate, up, width):
    for place in range(width):
        x = load_float(gate, place)
        store_float(gate, place, x * sigmoid(x) * load_float(up, place))


@njit(error_model="numpy")
def _gelu(gate, up, width):
    for place in range(width):
        x = load_float(gate, place)
        store_float(gate, place, x * sigmoid(x * (LINEAR + CUBIC * x * x)) * load_float(up, place))


@cfunc("void(voidptr)", nopython=True, error_model="numpy")
def kernel(words):
    shared = address_of(words)
    first, stride, num_rows = load_int64(shared, 1), load_int64(shared, 2), load_int64(shared, 3)
    width, is_gelu = load_int64(shared, 4), load_int64(shared, 5)
    row = claim(shared, 1)
    while row < num_rows:
        gate = first + row * stride
        if is_gelu != 0:
            _gelu(gate, gate + 4 * width, width)
        else:
            _silu(gate, gate + 4 * width, width)
        row = claim(shared, 1)
