"""Waiting for a cluster: poll with a deadline, say what was awaited."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
POLL_SECONDS = 0.25


class TimedOut(Exception):
    """Something did not happen in time."""


def wait_for(what: str, predicate: Callable[[], T | None], timeout_seconds: float) -> T:
    """The predicate's first true value. Raises TimedOut with `what` and the last value."""
    deadline = time.monotonic() + timeout_seconds
    while not (value := predicate()):
        if time.monotonic() > deadline:
            raise TimedOut(f"{what}: not within {timeout_seconds:.0f} s; last seen: {value!r}")
        time.sleep(POLL_SECONDS)
    return value
