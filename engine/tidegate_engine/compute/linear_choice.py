"""Tries ways to multiply on this machine at load, and remembers the choice.

Other machines differ from the one the defaults were measured on: without FBGEMM nothing is packed, and with other
caches another order of operands is faster. Orders keep the same bytes, so each shape is measured on a slice of its real
weights. All of it takes a fraction of a second: `budget_seconds` bounds it, and what was not measured by then gets the
default.
"""

from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from threading import Lock

import torch
import torch.nn.functional as F

from tidegate_engine.compute.int8 import Int8Linear, WidenedInt8Linear, multiplies_int8
from tidegate_engine.compute.linear import (
    FixedRowsLinear,
    Linear,
    Order,
    PackedLinear,
    PlainLinear,
    WidenedLinear,
    multiply,
)
from tidegate_engine.compute.matrix import DenseMatrix, Matrix
from tidegate_engine.cpu_kernels import catalog

MEASURED_ROWS = (1, 4, 16, 64)  # a step's rows are rounded up to one of these, larger ones down to the last
SLICE_ELEMENTS = 1 << 21  # of a weight, measured in the place of all of it
SMALLEST_ELEMENTS = 1 << 16  # below, the difference is less than its measurement
NUM_RUNS = 3  # the fastest counts: other processes only make runs slower
MOST_OWN_COLUMNS = 1 << 17  # with more, activations of our int8 kernel would get fewer than 8 bits
PROBE_ROWS, PROBE_COLUMNS = 24, 640  # neither a multiple of the kernels' blocks

# Deterministic mode: FBGEMM's smallest kernel for all CPUs takes six rows, so every row meets the same one. Sixteen
# rows of fp32 begin at multiples of 64 bytes whatever their length, since MKL's order of sums depends on that too.
PACKED_FIXED_ROWS = 6
PLAIN_FIXED_ROWS = 16

Pack = Callable[[Matrix, torch.Tensor | None], Linear]


class LinearChoice:
    """One per process, filled while a model loads."""

    def __init__(
        self,
        clock: Callable[[], float],
        budget_seconds: float = 0.5,
        *,
        pack: Pack = PackedLinear,
        own_half: Callable[[], Pack | None] = catalog.half_linear,
        own_int8: Callable[[], Pack | None] = catalog.int8_linear,
        can_multiply_int8: Callable[[], bool] = multiplies_int8,
        deterministic: bool = False,
    ) -> None:
        """`deterministic`: a row's product is the same to the bit whatever rows are beside it; nothing is measured."""
        self._clock = clock
        self._pack = pack
        self._own_half = own_half
        self._own_int8 = own_int8
        self._probe_int8 = can_multiply_int8
        self._is_deterministic = deterministic
        self._lock = Lock()
        self._can_multiply_int8: bool | None = None
        self._budget_seconds = budget_seconds
        self._spent_seconds = 0.0
        self._orders: dict[tuple[int, ...], tuple[Order, ...]] = {}
        self._can_pack: bool | None = None

    def exact(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        """For weights in the dtype that is computed in."""
        if self._is_deterministic:
            return FixedRowsLinear(PlainLinear(weight, bias, lambda _: Order.WEIGHT_FIRST), PLAIN_FIXED_ROWS)
        shape = tuple(weight.shape)
        if shape not in self._orders:
            self._orders[shape] = tuple(self._fastest_order(weight, rows) for rows in MEASURED_ROWS)
        orders = self._orders[shape]
        return PlainLinear(weight, bias, lambda rows: orders[min(bisect_left(MEASURED_ROWS, rows), len(orders) - 1)])

    def rounded(self, matrix: Matrix, bias: torch.Tensor | None) -> Linear:
        """For weights that may be kept in 16 bits, with fp32 activations.

        Packed wherever that works, never by measurement: it decides about memory, which was promised to the byte. With
        our own kernel this is deterministic as it is.
        """
        with self._lock:
            make = self._own_half() if matrix.shape[1] <= MOST_OWN_COLUMNS else None
            if make is None and self._can_pack is None:
                self._can_pack = packs_rightly(self._pack)
        if make is not None:
            return make(matrix, bias)
        layer, num_rows = (
            (self._pack(matrix, bias), PACKED_FIXED_ROWS)
            if self._can_pack
            else (WidenedLinear(matrix, bias), PLAIN_FIXED_ROWS)
        )
        return FixedRowsLinear(layer, num_rows) if self._is_deterministic else layer

    def quantised(self, matrix: Matrix, bias: torch.Tensor | None) -> Linear:
        """For weights that are to be int8. Integers have no order of sums, so this is deterministic as it is."""
        with self._lock:
            make = self._own_int8() if matrix.shape[1] <= MOST_OWN_COLUMNS else None
            if make is None and self._can_multiply_int8 is None:
                self._can_multiply_int8 = self._probe_int8()
        if make is not None:
            return make(matrix, bias)
        if self._can_multiply_int8:
            return Int8Linear(matrix, bias)
        layer = WidenedInt8Linear(matrix, bias)
        return FixedRowsLinear(layer, PLAIN_FIXED_ROWS) if self._is_deterministic else layer

    def _fastest_order(self, weight: torch.Tensor, rows: int) -> Order:
        default = Order.ROWS_FIRST if rows == 1 else Order.WEIGHT_FIRST
        if weight.numel() < SMALLEST_ELEMENTS or self._is_spent:
            return default
        x, sample = _activations(weight, rows), _slice(weight)
        return min(Order, key=lambda order: self._seconds(partial(multiply, x, sample, None, order)))

    @property
    def _is_spent(self) -> bool:
        return self._spent_seconds >= self._budget_seconds

    def _seconds(self, run: Callable[[], object]) -> float:
        times = []
        for _ in range(1 + NUM_RUNS):
            start = self._clock()
            run()
            times.append(self._clock() - start)
        self._spent_seconds += sum(times)
        return min(times[1:])  # the first one fetches the weights and allocates


def packs_rightly(pack: Pack) -> bool:
    """Whether packed products exist on this machine and are right, tried on a small matrix."""
    weight = torch.linspace(-1, 1, PROBE_ROWS * PROBE_COLUMNS).view(PROBE_ROWS, PROBE_COLUMNS).half()
    x = _activations(weight, rows=3)
    try:
        product = pack(DenseMatrix(weight), None)(x)
    except RuntimeError:
        return False
    return torch.allclose(product, F.linear(x, weight.float()), atol=1e-3, rtol=1e-3)


def _slice(weight: torch.Tensor) -> torch.Tensor:
    return weight[: max(1, SLICE_ELEMENTS // weight.shape[1])]


def _activations(weight: torch.Tensor, rows: int) -> torch.Tensor:
    return torch.linspace(-1, 1, rows * weight.shape[1], dtype=torch.float32).view(rows, -1)
