"""A histogram that costs one bisection to feed: values counted by upper bound, and their sum.

The engine and its loop keep them among their counters; metrics.py turns them into Prometheus histograms when scraped.
Bounds are vLLM's, so that dashboards made for it show ours beside it.
"""

from bisect import bisect_left
from itertools import accumulate

TTFT_SECONDS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
    640.0, 2560.0,
)  # fmt: skip
TOKEN_SECONDS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
REQUEST_SECONDS = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip
NUM_TOKENS = (
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000,
)  # fmt: skip
STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
NUM_CHOICES = (1, 2, 5, 10, 20)


class Tally:
    """One writing thread; a reader on another sees the buckets at most one value apart from the sum."""

    __slots__ = ("_bounds", "_counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        return sum(self._counts)

    def quantile(self, share: float) -> float:
        """The smallest bound below which so many values lie; the largest there is for those beyond it."""
        wanted, found = share * self.count, 0
        for bound, count in zip(self._bounds, self._counts, strict=False):
            found += count
            if found >= wanted:
                return bound
        return self._bounds[-1]

    def cumulative(self) -> list[tuple[str, float]]:
        """(upper bound, values up to it), the last bound +Inf, as Prometheus wants buckets."""
        names = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        return list(zip(names, accumulate(map(float, self._counts)), strict=True))
