"""The engine's near future from one look at its live requests: who starts when, guaranteed and spot.

A forecast for each class: in that of guaranteed requests, spot requests that may start beside them make steps longer;
in that of spot requests, guaranteed ones go first, those who wait and those who are expected to come.

Made by the door, a slice at a time, so that a thousand waiting requests never stop the event loop for long. Live
requests are read while the engine thread works on them: a step more or less changes no decision.

How long an answer becomes is drawn for each request from what was learned, by the golden ratio: the draws of any few
requests in a row are spread evenly over what is likely, so that ends come one by one as in reality and a forecast
made again says nearly the same.
"""

from collections import deque

from tidegate_engine.engine import Engine
from tidegate_engine.request import Request
from tidegate_engine.scheduling.arrivals import Arrivals
from tidegate_engine.scheduling.demand import Demand
from tidegate_engine.scheduling.forecast import Forecast, Rules, Wait
from tidegate_engine.scheduling.lengths import Progress
from tidegate_engine.scheduling.spot import EXPECTED_SHARE

GOLDEN_RATIO = (5**0.5 - 1) / 2
MAX_SPOT_BESIDE = 64  # spot requests that may start while guaranteed ones wait, and make steps longer
LEAST_SPOT = Demand(1, 1, 0, 1, 1, 1, is_spot=True)
BUCKETS_OF_MEAN = 16  # latest ends are known to this part of the mean max_tokens


class Outlook:
    """Complete once play() has played all who waited; then it grows with each request let in."""

    def __init__(self, engine: Engine, *, now: float, horizon_seconds: float, arrivals: Arrivals | None = None) -> None:
        self.made_at = now
        self.num_ended = engine.scheduler.num_ended
        self._num_drawn = 0
        self._horizon_seconds = horizon_seconds
        self._beyond: tuple[float, Forecast] | None = None  # what is said of every spot request if none starts in time
        waiting = engine.queue.snapshot()  # first, so that a request admitted just now is seen twice, not missed
        running = {request.request_id: request for request in engine.scheduler.running}
        self._upcoming = deque(request for request in waiting if request.request_id not in running)
        progress = [Progress(request.num_prompt_tokens, request.num_outputs) for request in running.values()]
        self._lengths = engine.lengths.and_running(progress)
        self._hit_share = engine.counters.prefix_hit_share
        seen = (*running.values(), *self._upcoming)
        mean_tokens = sum(request.sampling.max_tokens for request in seen) // max(1, len(seen))
        rules = Rules(
            slots=engine.scheduler.slots,
            num_blocks=engine.pool.num_blocks + engine.scheduler.num_shared_blocks,  # as if as many were always shared
            kv=engine.pool.kv,
            limits=engine.limits,
            step_time=engine.step_times.step_time,
            horizon_seconds=horizon_seconds,
            bucket_steps=max(1, mean_tokens // BUCKETS_OF_MEAN),
        )
        self._guaranteed = Forecast(rules)
        for request in running.values():
            if not request.finish_reason:
                self._guaranteed.admit(self.demand_of(request))
        self._spot = self._guaranteed.copy()
        self._spot.coming = (arrivals or Arrivals()).expected(now)
        spot = [request for request in self._upcoming if request.is_spot]
        self._guaranteed.others.extend(map(self.demand_of, spot[:MAX_SPOT_BESIDE]))

    @property
    def is_closed_to_spot(self) -> bool:
        """Whether it is known that no spot request starts within the horizon."""
        return self._beyond is not None

    @property
    def is_complete(self) -> bool:
        return not self._upcoming

    def play(self, num_requests: int) -> None:
        """So many of those who waited, in their order: guaranteed requests come before spot ones."""
        for _ in range(min(num_requests, len(self._upcoming))):
            request = self._upcoming.popleft()
            if not request.finish_reason:
                self._enqueue(self.demand_of(request))

    def place(self, demand: Demand) -> tuple[float, Forecast]:
        """Seconds until it is admitted, and the forecast with it admitted.

        Where not even the least spot request starts within the horizon, that is played once and not for each.
        """
        if not demand.is_spot:
            return self._guaranteed.place(demand)
        if self._beyond is None:
            seconds, after = self._spot.place(demand)
            if seconds < self._horizon_seconds or self._spot.place(LEAST_SPOT)[0] < self._horizon_seconds:
                return seconds, after
            self._beyond = seconds, after
        return self._beyond

    def let_in(self, request: Request, demand: Demand, after: Forecast) -> None:
        """The request queues; `after` is what place() said of it, if this outlook was asked."""
        if not self.is_complete:
            self._upcoming.append(request)
        elif demand.is_spot:
            self._spot = after
            if len(self._guaranteed.others) < MAX_SPOT_BESIDE:
                self._guaranteed.others.append(demand)
        else:
            self._guaranteed = after
            self._spot.others.append(demand)

    def waits_after(self, elapsed_seconds: float, num_queued: int) -> list[Wait]:
        """The waits still ahead some time after the outlook was made, of those of its waiting that are queued still.

        An engine may be slower than its forecast: whoever should have started and is queued has a wait of 0.
        """
        waits = sorted([*self._guaranteed.waits, *self._spot.waits])
        first = max(0, len(waits) - num_queued)
        return [wait._replace(seconds=max(0.0, wait.seconds - elapsed_seconds)) for wait in waits[first:]]

    def demand_of(self, request: Request) -> Demand:
        """A token is always missing: the engine thread may be in the midst of recording a step."""
        self._num_drawn += 1
        share = (0.5 + self._num_drawn * GOLDEN_RATIO) % 1.0
        max_tokens = request.sampling.max_tokens
        num_outputs = min(request.num_outputs, max_tokens - 1)
        curve = self._lengths.curve(request.num_prompt_tokens)
        expected_left = curve.quantile(share, num_outputs, max_tokens) - num_outputs
        likely_left = curve.quantile(EXPECTED_SHARE, num_outputs, max_tokens) - num_outputs
        return Demand(
            num_missing_tokens=self._num_missing(request),
            num_tokens=request.num_tokens,
            num_outputs=num_outputs,
            expected_left=expected_left,
            likely_left=min(max(expected_left, likely_left << request.num_preemptions), max_tokens - num_outputs),
            most_left=max_tokens - num_outputs,
            is_spot=request.is_spot,
        )

    def _num_missing(self, request: Request) -> int:
        """Of a prompt that nothing is computed of, the usual part is expected to be in the prefix cache."""
        missing = request.num_tokens - request.num_computed_tokens
        if not request.num_computed_tokens:
            missing -= max(request.num_hit_tokens, int(missing * self._hit_share))
        return max(1, missing)

    def _enqueue(self, demand: Demand) -> None:
        if demand.is_spot:
            self._spot.enqueue(demand)
        else:
            self._guaranteed.enqueue(demand)
            self._spot.others.append(demand)
