"""Requests that wait to be admitted, first come first served, and the rule by which a new one is refused.

Filled by the event loop's thread, emptied by the engine's: the only structure they share, hence the lock.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from tidegate_engine.counters import Refusal
from tidegate_engine.errors import QueueFull
from tidegate_engine.request import Request


class RequestQueue:
    """First come first served, with O(1) removal from the middle for requests that are cancelled."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: OrderedDict[str, Request] = OrderedDict()

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request: Request) -> None:
        with self._lock:
            assert request.request_id not in self._requests, f"request {request.request_id} is queued already"
            self._requests[request.request_id] = request

    def head(self) -> Request | None:
        with self._lock:
            return next(iter(self._requests.values()), None)

    def remove(self, request_id: str) -> Request | None:
        with self._lock:
            return self._requests.pop(request_id, None)

    def snapshot(self) -> tuple[Request, ...]:
        with self._lock:
            return tuple(self._requests.values())


@dataclass(frozen=True)
class QueueLimits:
    """Most requests that wait, and the longest predicted wait of an accepted one."""

    max_requests: int
    max_wait_seconds: float


def check_may_wait(limits: QueueLimits, waits_seconds: Sequence[float], wait_seconds: float) -> None:
    """Raises QueueFull with the moment at which the same request would be accepted if nobody else came.

    `waits_seconds`: predicted waits of those queued that cannot start at once, in order; `wait_seconds`: of the new.
    A request that starts at once is never refused, however many arrive with it.
    """
    if wait_seconds <= 0.0 and not waits_seconds:
        return
    num_waiting = len(waits_seconds)
    if num_waiting >= limits.max_requests:
        retry_after = (*waits_seconds, wait_seconds)[num_waiting - limits.max_requests]
        retry_after = max(retry_after, wait_seconds - limits.max_wait_seconds)
        raise QueueFull(
            f"{num_waiting} requests are waiting, the limit is {limits.max_requests}: retry in {retry_after:.1f} s",
            retry_after_seconds=retry_after,
            refusal=Refusal.QUEUE_REQUESTS,
        )
    if wait_seconds > limits.max_wait_seconds:
        retry_after = wait_seconds - limits.max_wait_seconds
        raise QueueFull(
            f"the predicted wait is {wait_seconds:.1f} s, the limit is {limits.max_wait_seconds:g} s: "
            f"retry in {retry_after:.1f} s",
            retry_after_seconds=retry_after,
            refusal=Refusal.QUEUE_WAIT,
        )
