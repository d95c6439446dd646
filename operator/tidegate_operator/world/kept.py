"""One look at something of the cluster that is the same for all pools, kept for so long. I/O is the reader's.

nodes.py, quotas.py and surroundings.py keep theirs here, so that a thousand pools cost one list, and a fault means the
same to all of them:

    read                                   the new value, for as long as whoever asks allows
    no such API, or not for us (404, 403)  no value: what was known is not so any more
    anything else                          the last answer, if there ever was one, and a new look soon
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from tidegate_operator.errors import Forbidden, KubeError, NotFound

RETRY_SECONDS = 5.0  # after a fault that may pass
T = TypeVar("T")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Sight(Generic[T]):
    """The last answer, a value or a no; before there was one, why there is none. Each answer is another object."""

    value: T | None
    fault: KubeError | None = None

    @property
    def is_answer(self) -> bool:
        return not _may_pass(self.fault) and (self.value is not None or self.fault is not None)


class Kept(Generic[T]):
    """`what` in words of the log: "nodes"."""

    def __init__(self, what: str, read: Callable[[], Awaitable[T]], *, clock: Callable[[], float]) -> None:
        self._what = what
        self._read = read
        self._clock = clock
        self._sight: Sight[T] = Sight(None)
        self._fault: KubeError | None = None  # of the newest look
        self._looked_at = float("-inf")
        self._looking = asyncio.Lock()

    async def sight(self, max_age_seconds: float) -> Sight[T]:
        """Not older than that, unless a look has failed; whoever asks meanwhile waits for the same look."""
        async with self._looking:
            asked_at = self._clock()
            allowed = min(max_age_seconds, RETRY_SECONDS) if _may_pass(self._fault) else max_age_seconds
            if asked_at - self._looked_at > allowed:
                before = self._fault
                await self._look()
                self._looked_at = asked_at
                self._say(before)
            return self._sight

    async def _look(self) -> None:
        try:
            found = await self._read()
        except KubeError as error:
            self._fault = error
            if not _may_pass(error) or not self._sight.is_answer:
                self._sight = Sight(None, error)
        else:
            self._fault = None
            same = self._sight.value if found == self._sight.value else found  # it is compared in no time later
            self._sight = Sight(same)

    def _say(self, before: KubeError | None) -> None:
        """Once when it begins, once when it is over; an API that is not there is no news."""
        if _reaction(self._fault) is _reaction(before):
            return
        match self._fault:
            case None:
                _log.info("%s are looked at", self._what)
            case NotFound():
                _log.debug("%s are not known to this API server", self._what)
            case Forbidden() as fault:
                _log.warning("%s are not looked at: %s", self._what, fault)
            case fault if self._sight.is_answer:
                _log.warning("%s are as they were last known: %s", self._what, fault)
            case fault:
                _log.warning("%s are not known yet: %s", self._what, fault)


def _reaction(fault: KubeError | None) -> type[KubeError] | None:
    """To faults that may pass it is the same, whichever comes after which."""
    return None if fault is None else KubeError if _may_pass(fault) else type(fault)


def _may_pass(fault: KubeError | None) -> bool:
    """It may be better next time, unlike a no."""
    return fault is not None and not isinstance(fault, (NotFound, Forbidden))
