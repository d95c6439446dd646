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

from collections.abc import Iterable
from typing import NamedTuple, Self

from tidegate_core.kv_demand import KvDemand
from tidegate_engine.scheduling.admission import AliveBlocks, Claim


class Instant(NamedTuple):
    """Somebody ends after so many steps; what all who ran until then hold at that moment, where it is highest."""

    step: int
    blocks: int


class BlockedHead(NamedTuple):
    """The head, when it can start at the earliest, and what happens in the pool until and after that."""

    head: Claim
    start: int
    instants: tuple[Instant, ...]
    num_blocks: int
    kv: KvDemand

    @classmethod
    def of(cls, head: Claim, decoding: Iterable[tuple[int, int]], num_blocks: int, kv: KvDemand) -> Self:
        instants = _instants(decoding, kv)
        return cls(head, _earliest_start(head, instants, num_blocks, kv), instants, num_blocks, kv)

    def is_delayed_by(self, passer: Claim) -> bool:
        """Never False where it is; True also in rare cases where it is not.

        Between two instants the first one's successor is taken for both, and the head as if it never ended.
        """
        if passer.left <= self.start:
            return False
        for instant in (*self.instants, Instant(passer.left, 0)):
            if instant.step <= self.start:
                continue
            step = min(instant.step, passer.left)
            head_blocks = self.kv.prefilling_blocks(self.head.held + min(self.head.left, step - self.start))
            if instant.blocks + self.kv.decoding_blocks(passer.held + step) + head_blocks > self.num_blocks:
                return True
            if instant.step >= passer.left:
                return False
        return False


def _earliest_start(head: Claim, instants: tuple[Instant, ...], num_blocks: int, kv: KvDemand) -> int:
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


def _instants(decoding: Iterable[tuple[int, int]], kv: KvDemand) -> tuple[Instant, ...]:
    """Every end, soonest first."""
    descending = sorted(decoding, reverse=True)
    alive = AliveBlocks(descending, kv)
    instants = [Instant(left, alive.blocks(number, left)) for number, (left, _) in enumerate(descending, 1)]
    return tuple(reversed(instants))
