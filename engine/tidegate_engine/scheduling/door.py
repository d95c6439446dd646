"""The door of an engine: decides in the caller's thread whether a new request may queue, from a forecast kept at hand.

A forecast is made from the live requests and grows by each request let in. It is made anew when it is old, or when an
answer ended and made room it does not know of, but never so often that predicting costs more than a small part of the
time. Live requests are read while the engine thread works on them: a step more or less changes no decision.
"""

from collections.abc import Callable, Iterable

from tidegate_engine.engine import Engine
from tidegate_engine.request import Request
from tidegate_engine.scheduling.forecast import Demand, Forecast, Rules, demand_of
from tidegate_engine.scheduling.queue import QueueLimits, check_may_wait

MAX_AGE_SECONDS = 0.25
MIN_AGE_IN_COSTS = 20  # a forecast is used for at least 20 times what making it cost


class Door:
    """Belongs to one thread: that of the event loop, or of a simulation."""

    def __init__(
        self, engine: Engine, limits: QueueLimits, *, usual_output_tokens: int, clock: Callable[[], float]
    ) -> None:
        self._engine = engine
        self._limits = limits
        self._usual_output_tokens = usual_output_tokens
        self._clock = clock
        self._made_at = float("-inf")
        self._cost_seconds = 0.0
        self._num_ended = -1
        self._forecast = self._make()

    def enter(self, request: Request) -> None:
        """Queues the request. Raises QueueFull, with the time after which it would be let in."""
        self._refresh()
        wait_seconds, after = self._forecast.place(demand_of(request, self._usual_output_tokens))
        elapsed = self._clock() - self._made_at
        waits_seconds = self._forecast.waits_after(elapsed, len(self._engine.queue))
        check_may_wait(self._limits, waits_seconds, max(0.0, wait_seconds - elapsed))
        self._forecast = after
        self._engine.queue.add(request)

    def wait_seconds(self, num_prompt_tokens: int, num_output_tokens: int) -> float:
        """Predicted wait of such a request if it came now."""
        self._refresh()
        demand = Demand(num_prompt_tokens, num_prompt_tokens, 0, num_output_tokens, num_output_tokens)
        wait_seconds, _ = self._forecast.place(demand)
        return max(0.0, wait_seconds - (self._clock() - self._made_at))

    def _refresh(self) -> None:
        age = self._clock() - self._made_at
        is_outdated = age >= MAX_AGE_SECONDS or self._num_ended != self._engine.scheduler.num_ended
        if is_outdated and age >= MIN_AGE_IN_COSTS * self._cost_seconds:
            self._forecast = self._make()

    def _make(self) -> Forecast:
        started = self._clock()
        engine = self._engine
        self._num_ended = engine.scheduler.num_ended
        rules = Rules(
            slots=engine.scheduler.slots,
            num_blocks=engine.pool.num_blocks,
            kv=engine.pool.kv,
            limits=engine.limits,
            step_time=engine.step_times.step_time,
            horizon_seconds=2 * self._limits.max_wait_seconds,
        )
        waiting = engine.queue.snapshot()  # first, so that a request admitted just now is seen twice, not missed
        running = {request.request_id: request for request in engine.scheduler.running}
        queued = self._demands(request for request in waiting if request.request_id not in running)
        forecast = Forecast.of(rules, self._demands(running.values()), queued)
        self._made_at = started
        self._cost_seconds = self._clock() - started
        return forecast

    def _demands(self, requests: Iterable[Request]) -> list[Demand]:
        return [demand_of(request, self._usual_output_tokens) for request in requests if not request.finish_reason]
