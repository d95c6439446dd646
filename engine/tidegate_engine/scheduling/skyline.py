r"""The peak formula, kept up to date instead of computed again: what decoding requests hold at the latest end of each.

    blocks
      |        ___ B ends          They move in lockstep, so what is held at a step to come does not change while time
      |   ____/   |___ A ends      passes: only whoever starts or ends changes it, at the instants up to its own end.
      |__/            \___
      +------|----|----|-- steps   One number an instant; the peak is their maximum.

Steps are counted from any fixed one. Admission asks for every head of the line, hence tens of microseconds a question.
The scheduler's guaranteed requests are in it from their first token to their end.
"""

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from itertools import repeat
from operator import add, sub
from typing import NamedTuple

from tidegate_core.kv_demand import KvDemand
from tidegate_engine.scheduling.admission import Claim, Instant
from tidegate_engine.scheduling.shared_blocks import Credit


class Place(NamedTuple):
    """A decoding request: its latest end, and the tokens it would have held at step 0 at one a step.

    `num_shared`: blocks that it holds and others are counted for, as long as it lives.
    """

    end: int
    base: int
    num_shared: int = 0

    @classmethod
    def of(cls, claim: Claim, now: int, num_shared: int = 0) -> "Place":
        return cls(now + claim.left, claim.held - now, num_shared)


class Prompt(NamedTuple):
    """A request that is counted as if it decoded from the next step on and never ended; `num_shared` as in Place."""

    claim: Claim
    num_shared: int = 0


class Skyline:
    """Equal to peak_blocks() of the same claims at any step, less what is counted for others."""

    def __init__(self, kv: KvDemand) -> None:
        self._kv = kv
        self._places: list[Place] = []  # soonest end first
        self._ends: list[int] = []  # the same ends
        self._used: list[int] = []  # blocks of all who have not ended before that end

    def copy(self) -> "Skyline":
        twin = Skyline(self._kv)
        twin._places, twin._ends, twin._used = self._places.copy(), self._ends.copy(), self._used.copy()
        return twin

    def add(self, place: Place) -> None:
        at = bisect_right(self._places, place)
        num_before = bisect_right(self._ends, place.end)
        self._used[:num_before] = map(add, self._used, self._blocks(place, num_before))
        self._used.insert(at, self._blocks_at(place))
        self._places.insert(at, place)
        self._ends.insert(at, place.end)

    def remove(self, place: Place) -> None:
        at = bisect_left(self._places, place)
        assert self._places[at] == place, f"nobody here has {place}"
        del self._places[at], self._ends[at], self._used[at]
        num_before = bisect_right(self._ends, place.end)
        self._used[:num_before] = map(sub, self._used, self._blocks(place, num_before))

    def count_less(self, place: Place, num_blocks: int) -> Place:
        """So many blocks more are counted for others; fewer, where it is negative."""
        at = bisect_left(self._places, place)
        assert self._places.pop(at) == place, f"nobody here has {place}"
        changed = place._replace(num_shared=place.num_shared + num_blocks)
        insort(self._places, changed)
        num_before = bisect_right(self._ends, place.end)
        self._used[:num_before] = [used - num_blocks for used in self._used[:num_before]]
        return changed

    def peak(
        self, now: int, joining: Claim | None, prefilling: Sequence[Prompt], credited: Sequence[Credit] = ()
    ) -> int:
        """If one more decodes from the next step on, beside prompts that are counted as peak_blocks() counts them.

        `credited`: of the one that joins, or of the last prompt where nobody does.
        """
        ends, used, last = self._ends, self._used, math.inf
        if joining is not None:
            place = Place.of(joining, now)
            last, at = place.end, bisect_right(ends, place.end)
            used = [*map(add, used, self._blocks(place, at)), self._blocks_at(place), *used[at:]]
            ends = [*ends[:at], place.end, *ends[at:]]
        rest = shared = 0  # of prompts: what they hold when all others have ended, and what of it is counted for others
        for (left, held), num_shared in prefilling:
            most = self._kv.prefilling_blocks(held + left)
            num_growing = bisect_left(ends, now + left)
            grown = self._kv.each_prefilling([held - now + end for end in ends[:num_growing]])
            used = list(map(add, used, [*grown, *repeat(most, len(ends) - num_growing)]))
            rest += most
            shared += num_shared
        for num_blocks, until in credited:
            num_before = bisect_right(ends, min(until, last))
            used = [*[blocks - num_blocks for blocks in used[:num_before]], *used[num_before:]]
            rest -= num_blocks if min(until, last) == math.inf else 0
        return max(rest, *used) - shared if used else rest - shared

    def instants(self, now: int) -> list[Instant]:
        """Soonest first."""
        return [Instant(end - now, blocks) for end, blocks in zip(self._ends, self._used, strict=True)]

    def _blocks(self, place: Place, num_instants: int) -> list[int]:
        """What one request is counted for at the first so many instants."""
        base, num_shared = place.base, place.num_shared
        blocks = self._kv.each_decoding([base + end for end in self._ends[:num_instants]])
        return [num - num_shared for num in blocks] if num_shared else blocks

    def _blocks_at(self, place: Place) -> int:
        """What one that is not in it, and all who end no sooner, are counted for at its end."""
        end = place.end
        others = self._places[bisect_left(self._ends, end) :]
        held = sum(self._kv.each_decoding([place.base + end, *[other.base + end for other in others]]))
        return held - place.num_shared - sum([other.num_shared for other in others])
