r"""The peak formula, kept up to date instead of computed again: what decoding requests hold at the latest end of each.

    blocks
      |        ___ B ends          They move in lockstep, so what is held at a step to come does not change while time
      |   ____/   |___ A ends      passes: only whoever starts or ends changes it, at the instants up to its own end.
      |__/            \___
      +------|----|----|-- steps   One number an instant; the peak is their maximum.

Steps are counted from any fixed one. Admission asks for every head of the line, hence tens of microseconds a question.
The scheduler's guaranteed requests are in it from their first token to their end.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import repeat
from operator import add, sub
from typing import NamedTuple

from tidegate_core.kv_demand import KvDemand
from tidegate_engine.scheduling.admission import Claim, Instant


class Place(NamedTuple):
    """A decoding request: its latest end, and the tokens it would have held at step 0 at one a step."""

    end: int
    base: int

    @classmethod
    def of(cls, claim: Claim, now: int) -> "Place":
        return cls(now + claim.left, claim.held - now)


class Skyline:
    """Equal to peak_blocks() of the same claims at any step."""

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

    def peak(self, now: int, joining: Claim | None, prefilling: Sequence[Claim]) -> int:
        """If one more decodes from the next step on, beside prompts that are counted as peak_blocks() counts them."""
        ends, used, rest = self._ends, self._used, 0
        if joining is not None:
            place = Place.of(joining, now)
            at = bisect_right(ends, place.end)
            used = [*map(add, used, self._blocks(place, at)), self._blocks_at(place), *used[at:]]
            ends = [*ends[:at], place.end, *ends[at:]]
        for left, held in prefilling:
            most = self._kv.prefilling_blocks(held + left)
            num_growing = bisect_left(ends, now + left)
            grown = self._kv.each_prefilling([held - now + end for end in ends[:num_growing]])
            used = list(map(add, used, [*grown, *repeat(most, len(ends) - num_growing)]))
            rest += most
        return max(rest, *used) if used else rest

    def instants(self, now: int) -> list[Instant]:
        """Soonest first."""
        return [Instant(end - now, blocks) for end, blocks in zip(self._ends, self._used, strict=True)]

    def _blocks(self, place: Place, num_instants: int) -> list[int]:
        """What one request holds at the first so many instants."""
        base = place.base
        return self._kv.each_decoding([base + end for end in self._ends[:num_instants]])

    def _blocks_at(self, place: Place) -> int:
        """What one that is not in it, and all who end no sooner, hold at its end."""
        end = place.end
        others = self._places[bisect_left(self._ends, end) :]
        return sum(self._kv.each_decoding([place.base + end, *[base + end for _, base in others]]))
