"""e ** x in a dozen instructions that LLVM makes vectors of; the C library's is called for one number at a time."""

import math

import numpy as np
from numba import njit

from tidegate_engine.cpu_kernels.memory import as_float, nearest

LEAST = np.float32(-87.0)  # below, results would have fewer digits
LOG2_E = np.float32(math.log2(math.e))
# Taylor's series of 2 ** x, by its highest power first: less than 2e-7 off on [-0.5, 0.5]
C6, C5, C4, C3, C2, C1, C0 = (np.float32(math.log(2) ** n / math.factorial(n)) for n in range(6, -1, -1))


@njit(error_model="numpy", fastmath={"contract"})
def exponential(x):
    """Of x <= 0; NaN stays NaN."""
    scaled = LOG2_E * (LEAST if x < LEAST else x)  # noqa: FURB136  # max() may lose NaN
    whole = nearest(scaled)
    rest = scaled - np.float32(whole)
    power = C6 * rest + C5
    power = power * rest + C4
    power = power * rest + C3
    power = power * rest + C2
    power = power * rest + C1
    power = power * rest + C0
    return power * as_float(np.int32((whole + 127) << 23))


@njit(error_model="numpy", fastmath={"contract"})
def sigmoid(x):
    """1 / (1 + e ** -x)"""
    small = exponential(-abs(x))
    return (small if x < 0 else np.float32(1)) / (np.float32(1) + small)
