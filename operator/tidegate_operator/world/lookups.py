"""What the API server said of objects that no watch tells of, for a while. CachedKube asks here before it asks there.

Only what seldom ends is kept, and of that the newest answers: a claim of a user that exists, a child's name that is
free. Whoever writes looks anew, so an old answer costs a delay and never a stranger's object.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from tidegate_operator.resources import PERSISTENT_VOLUME_CLAIM, Manifest, Resource
from tidegate_operator.world.cache import slim

MAX_KEPT = 10_000
Place = tuple[Resource, str, str]  # kind, namespace, name


class LookUp(NamedTuple):
    """One answer; None: there was none of that name."""

    at: float
    found: Manifest | None


class LookUps:
    """By object."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._kept: OrderedDict[Place, LookUp] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, place: Place, max_age_seconds: float) -> LookUp | None:
        """An answer that is younger than that."""
        known = self._kept.get(place)
        return known if known is not None and self._clock() - known.at < max_age_seconds else None

    def learn(self, place: Place, found: Manifest | None) -> None:
        """As of now; the oldest is forgotten, be it of a pool that is long gone."""
        self._kept.pop(place, None)
        is_claim = place[0] == PERSISTENT_VOLUME_CLAIM
        if is_claim == (found is not None):
            self._kept[place] = LookUp(self._clock(), None if found is None else slim(found))
        if len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)
