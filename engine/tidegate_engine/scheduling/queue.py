"""Requests that wait to be admitted, and the rule by which a new one is refused.

Guaranteed requests go before spot ones; the order within a class is its Line's. Filled by the event loop's thread,
emptied by the engine's: the only structure they share, hence the lock. Who is queued or running counts for its tenant.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from tidegate_engine.counters import Refusal
from tidegate_engine.errors import QueueFull, TenantOverShare
from tidegate_engine.request import Request, ServiceClass
from tidegate_engine.scheduling.fairness import TenantLedger, TenantShare
from tidegate_engine.scheduling.line import Line

RESERVE_SHARE = 4  # a queue is longer by this part of it for tenants that ask for less than their share


class RequestQueue:
    """A line for each service class. Nothing in it takes longer than the logarithm of its length but a snapshot."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines = {service_class: Line() for service_class in ServiceClass}
        self._tenants = TenantLedger()
        self._waiting: dict[str, Line] = {}
        self._num_prompt_tokens = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def num_prompt_tokens(self) -> int:
        """Of all that wait."""
        return self._num_prompt_tokens

    def add(self, request: Request) -> None:
        """A request begins to count for its tenant, until end()."""
        with self._lock:
            assert request.request_id not in self._waiting, f"request {request.request_id} is queued already"
            account = request.account = self._tenants.enter(request.terms.tenant, request.num_tokens_at_end)
            self._insert(request).add(request, account)

    def put_back(self, request: Request) -> None:
        """A preempted request goes to the head of its class; it has never ceased to count for its tenant."""
        with self._lock:
            self._insert(request).put_back(request)

    def remove(self, request_id: str) -> Request | None:
        """It starts, or ends without having started."""
        with self._lock:
            line = self._waiting.pop(request_id, None)
            request = line.remove(request_id) if line else None
            if request:
                self._num_prompt_tokens -= request.num_prompt_tokens
            return request

    def end(self, request: Request) -> None:
        """A request that is no longer in the queue has ended."""
        with self._lock:
            if request.account:
                self._tenants.leave(request.account, request.num_tokens_at_end)

    def head(self, service_class: ServiceClass) -> Request | None:
        with self._lock:
            return self._lines[service_class].head()

    def first(self, service_class: ServiceClass, num_requests: int) -> list[Request]:
        """The head and some of those behind it."""
        with self._lock:
            return self._lines[service_class].first(num_requests)

    def snapshot(self) -> tuple[Request, ...]:
        """In the order in which they will start."""
        with self._lock:
            return tuple(request for line in self._lines.values() for request in line.order())

    def is_over_share(self, tenant: str) -> bool:
        with self._lock:
            return self._tenants.is_over_share(tenant)

    def is_under_share(self, tenant: str) -> bool:
        with self._lock:
            return self._tenants.is_under_share(tenant)

    def tenant_shares(self) -> tuple[TenantShare, ...]:
        with self._lock:
            return self._tenants.shares()

    def _insert(self, request: Request) -> Line:
        line = self._waiting[request.request_id] = self._lines[request.terms.service_class]
        self._num_prompt_tokens += request.num_prompt_tokens
        return line


@dataclass(frozen=True)
class QueueLimits:
    """Most requests and prompt tokens that wait, and the longest predicted wait of an accepted request."""

    max_requests: int
    max_wait_seconds: float
    max_prompt_tokens: int | None = None

    def with_reserve(self) -> Self:
        tokens = self.max_prompt_tokens
        return replace(
            self,
            max_requests=self.max_requests + -(-self.max_requests // RESERVE_SHARE),
            max_prompt_tokens=None if tokens is None else tokens + -(-tokens // RESERVE_SHARE),
        )


def check_may_wait(
    limits: QueueLimits,
    waits_seconds: Sequence[float],
    wait_seconds: float,
    *,
    waiting_tokens: Sequence[int] = (),
    num_prompt_tokens: int = 0,
    is_over_share: bool = False,
    is_under_share: bool = False,
) -> None:
    """Raises QueueFull with the moment at which the same request would be accepted if nobody else came.

    `waits_seconds` and `waiting_tokens`: predicted waits and prompt tokens of those queued that cannot start at once,
    in order; `wait_seconds` and `num_prompt_tokens`: of the new. One that starts at once is never refused, however many
    arrive with it. TenantOverShare is raised instead where the new request's tenant asks for more than its share; for
    one that asks for less the queue is a quarter longer, so that others cannot lock it out by filling it.
    """
    if wait_seconds <= 0.0 and not waits_seconds:
        return
    if is_under_share:
        limits = limits.with_reserve()
    reasons = (
        _full_of_requests(limits, waits_seconds, wait_seconds),
        _full_of_tokens(limits, waits_seconds, waiting_tokens, num_prompt_tokens),
        _too_long_a_wait(limits, wait_seconds),
    )
    full = [reason for reason in reasons if reason]
    if not full:
        return
    retry_after = max(reason.retry_after_seconds for reason in full)
    message = f"{full[0].message}: retry in {retry_after:.1f} s"
    if is_over_share:
        raise TenantOverShare(f"{message}; this key asks for more than its share", retry_after_seconds=retry_after)
    raise QueueFull(message, retry_after_seconds=retry_after, refusal=full[0].refusal)


class _Full(NamedTuple):
    message: str
    retry_after_seconds: float
    refusal: Refusal


def _full_of_requests(limits: QueueLimits, waits_seconds: Sequence[float], wait_seconds: float) -> _Full | None:
    num_waiting = len(waits_seconds)
    if num_waiting < limits.max_requests:
        return None
    return _Full(
        f"{num_waiting} requests are waiting, the limit is {limits.max_requests}",
        (*waits_seconds, wait_seconds)[num_waiting - limits.max_requests],
        Refusal.QUEUE_REQUESTS,
    )


def _too_long_a_wait(limits: QueueLimits, wait_seconds: float) -> _Full | None:
    if wait_seconds <= limits.max_wait_seconds:
        return None
    message = f"the predicted wait is {wait_seconds:.1f} s, the limit is {limits.max_wait_seconds:g} s"
    return _Full(message, wait_seconds - limits.max_wait_seconds, Refusal.QUEUE_WAIT)


def _full_of_tokens(
    limits: QueueLimits, waits_seconds: Sequence[float], waiting_tokens: Sequence[int], num_prompt_tokens: int
) -> _Full | None:
    """A prompt longer than the limit waits once nobody else does: it would never be served otherwise."""
    num_waiting = sum(waiting_tokens)
    if limits.max_prompt_tokens is None or num_waiting == 0:
        return None
    excess = num_waiting + num_prompt_tokens - limits.max_prompt_tokens
    if excess <= 0:
        return None
    retry_after = 0.0
    for seconds, num_tokens in zip(waits_seconds, waiting_tokens, strict=True):
        retry_after = seconds
        excess -= num_tokens
        if excess <= 0:
            break
    return _Full(
        f"{num_waiting} prompt tokens are waiting and {num_prompt_tokens} would join them, "
        f"the limit is {limits.max_prompt_tokens}",
        retry_after,
        Refusal.QUEUE_TOKENS,
    )
