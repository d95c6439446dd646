"""Waiting for a cluster: as tests wait (waiting.py does both), at a calmer pace."""

from collections.abc import Callable
from typing import TypeVar

from tests.waiting import eventually

T = TypeVar("T")
POLL_SECONDS = 0.25  # a look is requests to an API server that shares the machine with what is waited for


def wait_for(what: str, predicate: Callable[[], T | None], timeout_seconds: float) -> T:
    """The predicate's first true value. AssertionError with `what` and the last value."""
    return eventually(predicate, timeout_seconds=timeout_seconds, what=what, poll_seconds=POLL_SECONDS)
