"""Measures ways to multiply on this machine at load, and remembers the choice for every shape.

Other machines differ from the one the defaults were measured on (no FBGEMM on ARM, other caches), so each shape is
tried on a slice of its real weights. All of it takes a fraction of a second: `budget_seconds` bounds it, and what was
not measured by then gets the default.
"""

from bisect import bisect_left
from collections.abc import Callable
from functools import partial

import torch

from tidegate_engine.linear import Linear, Order, PackedLinear, PlainLinear, WidenedLinear, multiply

MEASURED_ROWS = (1, 4, 16, 64)  # a step's rows are rounded up to one of these, larger ones down to the last
SLICE_ELEMENTS = 1 << 21  # of a weight, measured in the place of all of it
SMALLEST_ELEMENTS = 1 << 16  # below, the difference is less than its measurement
NUM_RUNS = 3  # the fastest counts: other processes only make runs slower

Pack = Callable[[torch.Tensor, torch.Tensor | None], Linear]


class LinearChoice:
    """One per process, filled while a model loads."""

    def __init__(self, clock: Callable[[], float], budget_seconds: float = 0.5, pack: Pack = PackedLinear) -> None:
        self._clock = clock
        self._pack = pack
        self._budget_seconds = budget_seconds
        self._spent_seconds = 0.0
        self._orders: dict[tuple[int, ...], tuple[Order, ...]] = {}
        self._packs: dict[int, bool] = {}

    def exact(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        """For weights in the dtype that is computed in."""
        shape = tuple(weight.shape)
        if shape not in self._orders:
            self._orders[shape] = tuple(self._fastest_order(weight, rows) for rows in MEASURED_ROWS)
        orders = self._orders[shape]
        return PlainLinear(weight, bias, lambda rows: orders[min(bisect_left(MEASURED_ROWS, rows), len(orders) - 1)])

    def rounded(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        """For weights that may be kept in 16 bits, with fp32 activations."""
        width = weight.shape[1]
        if width not in self._packs:
            self._packs[width] = self._is_packing_worth_it(weight)
        return self._pack(weight, bias) if self._packs[width] else WidenedLinear(weight, bias)

    def _fastest_order(self, weight: torch.Tensor, rows: int) -> Order:
        default = Order.ROWS_FIRST if rows == 1 else Order.WEIGHT_FIRST
        if weight.numel() < SMALLEST_ELEMENTS or self._is_spent:
            return default
        x, sample = _activations(weight, rows), _slice(weight)
        return min(Order, key=lambda order: self._seconds(partial(multiply, x, sample, None, order)))

    def _is_packing_worth_it(self, weight: torch.Tensor) -> bool:
        sample = _slice(weight)
        try:
            packed = self._pack(sample, None)
        except RuntimeError:
            return False
        if weight.numel() < SMALLEST_ELEMENTS or self._is_spent:
            return True
        widened = WidenedLinear(sample, None)
        inputs = [_activations(weight, rows) for rows in MEASURED_ROWS[:3]]
        return sum(self._seconds(partial(packed, x)) for x in inputs) < sum(
            self._seconds(partial(widened, x)) for x in inputs
        )

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


def _slice(weight: torch.Tensor) -> torch.Tensor:
    return weight[: max(1, SLICE_ELEMENTS // weight.shape[1])]


def _activations(weight: torch.Tensor, rows: int) -> torch.Tensor:
    return torch.linspace(-1, 1, rows * weight.shape[1], dtype=torch.float32).view(rows, -1)
