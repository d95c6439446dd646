r"""The peak formula for forecasts: nearly as exact as admission's, at a cost that does not grow with who is running.

A forecast asks thousands of times whether somebody would fit, each time after one end or one start. So decoding
requests are kept in buckets of their latest end, and blocks are not rounded up one by one:

    blocks held            <- bucket 9: 2 requests, latest ends 310 and 315
      |      ___            <- bucket 7: 1 request
      | ____/   \__            each bucket is one instant: the mean of its latest ends
      +----------------- step

Requests that are computing their prompt are not in it: the forecast counts them in full, as admission does.
"""

from copy import copy
from typing import NamedTuple, Self

from tidegate_core.kv_demand import KvDemand


class Growth(NamedTuple):
    """A decoding request: its latest end, and the blocks it holds at the end, and at step 0 at its constant rate."""

    latest_end: int
    blocks_at_zero: float
    end_blocks: int


class ExpectedClaims:
    """What admission counts of those who run in a forecast; steps are counted from any fixed one.

    `at_end` are the blocks if all of them ran to the end at once, `prefilling` of those that compute their prompt.
    """

    def __init__(self, kv: KvDemand, bucket_steps: int) -> None:
        self._kv = kv
        self._bucket_steps = bucket_steps
        self._blocks_a_step = kv.num_growing / kv.block_size
        self._rounding = kv.num_growing * (kv.block_size - 1) / (2 * kv.block_size)  # mean of rounding up
        self.at_end = 0
        self.prefilling = 0
        self._buckets: dict[int, tuple[float, int, float]] = {}  # sum of latest ends, requests, sum of blocks at zero

    def copy(self) -> Self:
        twin = copy(self)
        twin._buckets = self._buckets.copy()  # noqa: SLF001 - its own kind
        return twin

    def leave_room(self, num_blocks: int, growth: Growth, *, is_in_lockstep: bool) -> bool:
        """For one more; `is_in_lockstep` if it decodes from the next step on."""
        if self.at_end + growth.end_blocks <= num_blocks:
            return True
        if not is_in_lockstep:
            return self.peak() + self.prefilling + growth.end_blocks <= num_blocks
        self._count(growth, 1)
        peak = self.peak()
        self._count(growth, -1)
        return peak + self.prefilling <= num_blocks

    def growth(self, step: int, num_tokens: int, left: int) -> Growth:
        """Of a request that holds so many tokens at this step. What windows cap is counted in full from the start."""
        most_blocks = -(-(num_tokens + left) // self._kv.block_size)
        capped = sum(cap.num_groups * min(most_blocks, cap.decoding) for cap in self._kv.caps)
        at_zero = (num_tokens - step) * self._blocks_a_step + self._rounding + capped
        return Growth(step + left, at_zero, self._kv.prefilling_blocks(num_tokens + left))

    def begin_prompt(self, end_blocks: int) -> None:
        self.at_end += end_blocks
        self.prefilling += end_blocks

    def end_prompt(self, end_blocks: int) -> None:
        self.at_end -= end_blocks
        self.prefilling -= end_blocks

    def begin_decoding(self, growth: Growth) -> None:
        self.at_end += growth.end_blocks
        self._count(growth, 1)

    def end_decoding(self, growth: Growth) -> None:
        self.at_end -= growth.end_blocks
        self._count(growth, -1)

    def peak(self) -> float:
        """Blocks that all who decode hold at most.

        At the mean of a bucket's latest ends one half of its requests have ended, or none if it has but one.
        """
        blocks_a_step = self._blocks_a_step
        peak = at_zero = num_alive = 0.0
        for bucket in sorted(self._buckets, reverse=True):
            ends, num, blocks = self._buckets[bucket]
            alive_share = (num + 1) / (2 * num)
            held = at_zero + blocks * alive_share + (num_alive + num * alive_share) * (ends / num) * blocks_a_step
            peak = max(peak, held)
            at_zero += blocks
            num_alive += num
        return peak

    def _count(self, growth: Growth, sign: int) -> None:
        bucket = growth.latest_end // self._bucket_steps
        ends, num, blocks = self._buckets.get(bucket, (0, 0, 0.0))
        if num + sign:
            self._buckets[bucket] = (
                ends + sign * growth.latest_end,
                num + sign,
                blocks + sign * growth.blocks_at_zero,
            )
        else:
            del self._buckets[bucket]
