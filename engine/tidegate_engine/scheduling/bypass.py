r"""May a small request pass a big one that the pool has no room for yet? Only if the big one starts no later for it.

    blocks
      |  N ------------------------------- the pool
      |      ____  others end one by one
      |  ___/    \____      ____ the blocked head, from the step at which it fits
      |  ..passer..   \____/
      +------------------|----- steps
                         start

Without the passer the head starts at a step that follows from when the others end at the latest. With it, it must still
fit there: the passer has ended by then, or there is room for both. Then the start never moves back, whoever passes.
The scheduler asks twice: with the others at their max_tokens, and with what their answers are expected to become.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self

from tidegate_core.kv_demand import KvDemand
from tidegate_engine.scheduling.admission import AliveBlocks, Claim, Instant


class BlockedHead(NamedTuple):
    """The head, when it can start at the earliest, and what happens in the pool until and after that."""

    head: Claim
    start: int
    instants: Sequence[Instant]
    num_blocks: int
    kv: KvDemand

    @classmethod
    def of(
        cls, head: Claim, decoding: Iterable[tuple[int, int]], num_blocks: int, kv: KvDemand, *, num_shared: int = 0
    ) -> Self:
        return cls.at(head, _instants(decoding, kv), num_blocks, kv, num_shared=num_shared)

    @classmethod
    def at(
        cls, head: Claim, instants: Sequence[Instant], num_blocks: int, kv: KvDemand, *, num_shared: int = 0
    ) -> Self:
        """Where it is known what happens in the pool; soonest first.

        `num_shared`: blocks of the head that others hold now. It may start so much earlier if they hold them until
        then, and passers are asked as if they did not.
        """
        return cls(head, _earliest_start(head, instants, num_blocks + num_shared, kv), instants, num_blocks, kv)

    def is_delayed_by(self, passer: Claim) -> bool:
        """Never False where it is; True also in rare cases where it is not.

        Between two instants the first one's successor is taken for both, and the head as if it never ended.
        """
        start, last, kv = self.start, passer.left, self.kv
        if last <= start:
            return False
        first_after = bisect_right(self.instants, start, key=_step_of)
        upcoming = self.instants[first_after : 1 + bisect_left(self.instants, last, key=_step_of)]
        if not upcoming or upcoming[-1].step < last:
            upcoming = [*upcoming, Instant(last, 0)]
        steps = [min(instant.step, last) for instant in upcoming]
        passer_blocks = kv.each_decoding([passer.held + step for step in steps])
        head_blocks = kv.each_prefilling([self.head.held + min(self.head.left, step - start) for step in steps])
        most_others = [instant.blocks for instant in upcoming]
        return max(map(sum, zip(most_others, passer_blocks, head_blocks, strict=True))) > self.num_blocks


def _step_of(instant: Instant) -> int:
    return instant.step


def _earliest_start(head: Claim, instants: Sequence[Instant], num_blocks: int, kv: KvDemand) -> int:
    """Steps until the head fits beside the others, if no answer is shorter than claimed; never too many.

    At an instant with `free` blocks it may have run for some steps only: each instant forbids the starts that would
    have it longer there, from a start so early that it had ended before.
    """
    start = 0
    head_blocks = kv.decoding_blocks(head.held + head.left)
    for step, blocks in instants:
        free = num_blocks - blocks
        if head_blocks <= free:
            continue
        if step - head.left > start:
            break
        most_steps = free // kv.num_growing * kv.block_size - head.held if kv.num_growing else head.left
        start = max(start, step - max(0, most_steps))
    return start


def _instants(decoding: Iterable[tuple[int, int]], kv: KvDemand) -> list[Instant]:
    """Every end, soonest first."""
    descending = sorted(decoding, reverse=True)
    alive = AliveBlocks(descending, kv)
    instants = [Instant(left, alive.blocks(number, left)) for number, (left, _) in enumerate(descending, 1)]
    return instants[::-1]
