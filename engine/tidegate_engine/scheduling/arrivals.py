"""Guaranteed requests that are still to come, by those that came lately: spot requests wait for them too.

The door notes whom it lets in. A forecast takes it that the same ones come again, at the same distances:

    came       a  b c          now
    will come               a  b c          a  b c          for a minute, then nobody
"""

from collections import deque
from typing import NamedTuple

from tidegate_engine.scheduling.demand import Demand

MAX_KEPT = 64
MAX_AGE_SECONDS = 60.0
FEWEST = 4  # of which a rate is believed
SHORTEST_SECONDS = 1.0  # a burst is not expected to come again faster than this


class Arrival(NamedTuple):
    """Seconds are counted from any fixed moment."""

    seconds: float
    demand: Demand


class Coming(NamedTuple):
    """The same ones in each period; seconds from now."""

    each_period: tuple[Arrival, ...] = ()
    period_seconds: float = 0.0

    def by(self, seconds: float, first: int) -> list[Demand]:
        """Those who come by then, less the first so many."""
        found: list[Demand] = []
        while self.each_period:
            rounds, index = divmod(first + len(found), len(self.each_period))
            arrival = self.each_period[index]
            if rounds * self.period_seconds + arrival.seconds > min(seconds, MAX_AGE_SECONDS):
                break
            found.append(arrival.demand)
        return found


class Arrivals:
    """The last few."""

    def __init__(self) -> None:
        self._recent: deque[Arrival] = deque(maxlen=MAX_KEPT)

    def note(self, demand: Demand, now: float) -> None:
        self._recent.append(Arrival(now, demand))

    def expected(self, now: float) -> Coming:
        """Nobody where too few came to tell."""
        recent = [arrival for arrival in self._recent if now - arrival.seconds < MAX_AGE_SECONDS]
        if len(recent) < FEWEST:
            return Coming()
        began = recent[0].seconds if len(recent) == len(self._recent) else now - MAX_AGE_SECONDS
        period_seconds = max(now - began, SHORTEST_SECONDS)
        return Coming(tuple(Arrival(seconds - began, demand) for seconds, demand in recent), period_seconds)
