"""Waiting in tests: poll a predicate until a deadline, never sleep for a guess."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")
POLL_SECONDS = 0.05


def eventually(
    predicate: Callable[[], T | None],
    *,
    timeout_seconds: float = 30.0,
    what: str = "",
    poll_seconds: float = POLL_SECONDS,
) -> T:
    """The predicate's first true value; AssertionError with its last value after the deadline.

    An AssertionError inside the predicate counts as "not yet", so that a block of asserts can be polled.
    """
    end = time.monotonic() + timeout_seconds
    while True:
        last: object
        try:
            if last := predicate():
                return last
        except AssertionError as error:
            last = error
        if time.monotonic() > end:
            raise AssertionError(f"{what or predicate.__name__} did not become true in {timeout_seconds} s: {last!r}")
        time.sleep(poll_seconds)


async def eventually_async(
    predicate: Callable[[], T | Awaitable[T]], *, timeout_seconds: float = 30.0, what: str = ""
) -> T:
    """eventually() for tests that share their loop with what they watch."""
    end = time.monotonic() + timeout_seconds
    while True:
        value = predicate()
        last = await value if isinstance(value, Awaitable) else value
        if last:
            return last
        if time.monotonic() > end:
            raise AssertionError(f"{what or predicate.__name__} did not become true in {timeout_seconds} s: {last!r}")
        await asyncio.sleep(POLL_SECONDS)
