"""The door of an engine: decides in the caller's thread whether a new request may queue, from an outlook kept at hand.

The outlook grows by each request let in. It is made anew when it is old, or when an answer ended and made room it does
not know of: a slice at each call, so that none takes long, and never so often that predicting costs more than a
small part of the time. Until the new one is complete the old one answers.
"""

from collections.abc import Callable

from tidegate_engine.engine import Engine
from tidegate_engine.request import Request
from tidegate_engine.scheduling.arrivals import Arrivals
from tidegate_engine.scheduling.demand import Demand
from tidegate_engine.scheduling.forecast import Forecast
from tidegate_engine.scheduling.outlook import Outlook
from tidegate_engine.scheduling.queue import QueueLimits, check_may_wait

MAX_AGE_SECONDS = 0.25
MIN_AGE_IN_COSTS = 20  # an outlook is used for at least 20 times what making it cost
SLICE_REQUESTS = 64  # waiting requests played at each call, more where calls are rare


class Door:
    """Belongs to one thread: that of the event loop, or of a simulation."""

    def __init__(self, engine: Engine, limits: QueueLimits, *, clock: Callable[[], float]) -> None:
        self._engine = engine
        self._limits = limits
        self._clock = clock
        self._cost_seconds = self._next_cost_seconds = 0.0
        self._next: Outlook | None = None
        self._arrivals = Arrivals()
        self._outlook = self._look()
        self._play(self._outlook, num_requests=len(engine.queue))

    def enter(self, request: Request) -> float:
        """Queues the request and returns the seconds it is expected to wait.

        Raises QueueFull or TenantOverShare, with the time after which it would be let in.
        """
        self._refresh()
        outlook, queue = self._outlook, self._engine.queue
        demand = outlook.demand_of(request)
        seconds, after = self._place(demand)
        elapsed = self._clock() - outlook.made_at
        waits = outlook.waits_after(elapsed, len(queue))
        wait_seconds = max(0.0, seconds - elapsed)
        check_may_wait(
            self._limits,
            [wait.seconds for wait in waits],
            wait_seconds,
            waiting_tokens=[wait.num_prompt_tokens for wait in waits],
            num_prompt_tokens=request.num_prompt_tokens,
            is_over_share=queue.is_over_share(request.terms.tenant),
            is_under_share=queue.is_under_share(request.terms.tenant),
        )
        outlook.let_in(request, demand, after)
        if self._next:
            self._next.let_in(request, demand, after)
        queue.add(request)
        if not request.is_spot:
            self._arrivals.note(demand, self._clock())
        return wait_seconds

    def wait_seconds(self, num_prompt_tokens: int, num_output_tokens: int) -> float:
        """Predicted wait of such a request if it came now."""
        self._refresh()
        demand = Demand(
            num_prompt_tokens, num_prompt_tokens, 0, num_output_tokens, num_output_tokens, num_output_tokens
        )
        seconds, _ = self._outlook.place(demand)
        return max(0.0, seconds - (self._clock() - self._outlook.made_at))

    def _place(self, demand: Demand) -> tuple[float, Forecast]:
        """To find out that an outlook is closed to spot requests may cost more than to make it, and counts so."""
        outlook, started = self._outlook, self._clock()
        was_closed = outlook.is_closed_to_spot
        placed = outlook.place(demand)
        if outlook.is_closed_to_spot and not was_closed:
            self._cost_seconds += self._clock() - started
        return placed

    def _refresh(self) -> None:
        if self._next is None and self._is_outdated():
            self._next = self._look()
        if self._next:
            num_slices = 1 + (self._clock() - self._next.made_at) / MAX_AGE_SECONDS  # where calls are rare, few suffice
            self._play(self._next, num_requests=int(num_slices * SLICE_REQUESTS))

    def _is_outdated(self) -> bool:
        age = self._clock() - self._outlook.made_at
        is_outdated = age >= MAX_AGE_SECONDS or self._outlook.num_ended != self._engine.scheduler.num_ended
        return is_outdated and age >= MIN_AGE_IN_COSTS * self._cost_seconds

    def _look(self) -> Outlook:
        started = self._clock()
        outlook = Outlook(
            self._engine, now=started, horizon_seconds=2 * self._limits.max_wait_seconds, arrivals=self._arrivals
        )
        self._next_cost_seconds = self._clock() - started
        return outlook

    def _play(self, outlook: Outlook, *, num_requests: int) -> None:
        started = self._clock()
        outlook.play(num_requests)
        self._next_cost_seconds += self._clock() - started
        if outlook.is_complete:
            self._outlook, self._next = outlook, None
            self._cost_seconds = self._next_cost_seconds
