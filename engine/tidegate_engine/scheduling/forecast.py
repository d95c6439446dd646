"""When will a request start? The scheduler's own rules, played forward from event to event.

Between two events (a prompt is computed, an answer ends) all steps are alike, so their number times the fitted step
time is added at once. Admission counts as the scheduler does, guaranteed requests with max_tokens and spot requests
with everybody as long as is likely, but answers end where their expectation says. Pure: outlooks admit() who runs and
enqueue() who waits; place(newcomer) gives its wait and what follows from it. All of these are of one class; `others` of
the other class wait too, and start when they would beside them.
"""

import heapq
from collections import deque
from copy import copy
from dataclasses import dataclass
from typing import NamedTuple

from tidegate_core.kv_demand import KvDemand
from tidegate_engine.scheduling.arrivals import Coming
from tidegate_engine.scheduling.budget import BudgetLimits, token_budget
from tidegate_engine.scheduling.chunks import MAX_PARTIAL_PROMPTS
from tidegate_engine.scheduling.demand import Demand
from tidegate_engine.scheduling.expected_claims import ExpectedClaims, Growth
from tidegate_engine.scheduling.step_fit import StepTime


@dataclass(frozen=True)
class Rules:
    """What does not change while a forecast is made."""

    slots: int
    num_blocks: int
    kv: KvDemand
    limits: BudgetLimits
    step_time: StepTime
    horizon_seconds: float  # beyond this the exact wait matters to nobody
    bucket_steps: int  # as in ExpectedClaims


class Wait(NamedTuple):
    """Of a request that cannot start at once."""

    seconds: float
    num_prompt_tokens: int


class Decoder(NamedTuple):
    """A request that samples a token a step and holds `base + step` tokens. Sorts by the step of its expected end."""

    expected_end: int
    base: int
    growths: tuple[Growth, ...]


class Forecast:
    """The engine at a later moment: `seconds` and `step` from when the forecast began."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.seconds = 0.0
        self.step = 0
        self.waits: list[Wait] = []  # of those queued that could not start at once, in order
        self.decoding: list[Decoder] = []  # a heap
        self.prefilling: list[Demand] = []
        self.decoding_base = 0  # sum over `decoding`, for each event asks for it
        self.likely = ExpectedClaims(rules.kv, rules.bucket_steps)  # of everybody: spot requests are admitted by it
        self.most = ExpectedClaims(rules.kv, rules.bucket_steps)  # of guaranteed requests, which are admitted by it
        self.others: deque[Demand] = deque()  # that wait too, of the class that is not placed here
        self.coming = Coming()  # guaranteed requests, while spot requests are placed
        self.num_come = 0

    def copy(self) -> "Forecast":
        twin = copy(self)
        twin.waits, twin.decoding, twin.prefilling = self.waits.copy(), self.decoding.copy(), self.prefilling.copy()
        twin.likely, twin.most = self.likely.copy(), self.most.copy()
        twin.others = self.others.copy()
        return twin

    def place(self, demand: Demand) -> tuple[float, "Forecast"]:
        """Seconds until a request that queues now is admitted, and the forecast with it admitted."""
        later = self.copy()
        later.enqueue(demand)
        return later.seconds, later

    def enqueue(self, demand: Demand) -> None:
        """Plays on until the request is admitted, behind everybody queued before it."""
        while not self._starts(demand) and self.seconds < self.rules.horizon_seconds:
            self._advance()
        self.admit(demand)
        if self.seconds > 0.0:
            self.waits.append(Wait(self.seconds, demand.num_tokens - demand.num_outputs))

    def admit(self, demand: Demand) -> None:
        if demand.num_outputs and demand.num_missing_tokens == 1:
            self._start_decoding(demand)
            return
        self.prefilling.append(demand)
        for claims, growth in self._counted(self._growths(demand)):
            claims.begin_prompt(growth.end_blocks)

    def _starts(self, demand: Demand) -> bool:
        """Whether it does now: spot requests do where only blocks keep the guaranteed ones before them waiting."""
        if demand.is_spot:
            self._let_come()
            return self._others_start() and self._has_place(demand) and self._has_blocks(demand)
        if not self._has_place(demand):
            return False
        if self._has_blocks(demand):
            return True
        self._others_start()
        return False

    def _let_come(self) -> None:
        """Those who are to come by now; whoever asks at the very beginning is here before the first of them."""
        if self.seconds > 0.0:
            come = self.coming.by(self.seconds, self.num_come)
            self.num_come += len(come)
            self.others += come

    def _others_start(self) -> bool:
        """As many as do now; False if their head lacks more than blocks."""
        while self.others:
            if not self._has_place(self.others[0]):
                return False
            if not self._has_blocks(self.others[0]):
                return True
            self.admit(self.others.popleft())
        return True

    def _has_place(self, demand: Demand) -> bool:
        """A spot request leaves a slot for the guaranteed one that waits."""
        is_slot_kept = demand.is_spot and bool(self.others)
        if len(self.decoding) + len(self.prefilling) + is_slot_kept >= self.rules.slots:
            return False
        return len(self.prefilling) < MAX_PARTIAL_PROMPTS or self._spare_prompt_tokens() > 0

    def _has_blocks(self, demand: Demand) -> bool:
        claims, growth = self._counted(self._growths(demand))[-1]
        is_in_lockstep = demand.num_missing_tokens <= self._spare_prompt_tokens()
        return claims.leave_room(self.rules.num_blocks, growth, is_in_lockstep=is_in_lockstep)

    def _advance(self) -> None:
        """On to the next event: the first prompt is computed, or the next answer ends."""
        if not self.prefilling and not self.decoding:
            raise AssertionError("a request that fits alone has room in an empty engine")
        num_decoding = len(self.decoding)
        num_context = self._num_context_tokens()
        chunk = steps = 0
        if self.prefilling:
            chunk = min(self._prompt_tokens_a_step(), self._num_missing_tokens())
            steps = -(-self.prefilling[0].num_missing_tokens // chunk)
        if self.decoding:
            until_end = self.decoding[0].expected_end - self.step
            steps = min(steps, until_end) if steps else until_end
        steps = max(1, steps)
        self.seconds += steps * self.rules.step_time.predict(num_decoding + chunk, num_context)
        self.step += steps
        while self.decoding and self.decoding[0].expected_end <= self.step:
            self._end(heapq.heappop(self.decoding))
        if chunk:
            self._compute_prompts(steps * chunk)

    def _compute_prompts(self, num_tokens: int) -> None:
        while self.prefilling and num_tokens > 0:
            first = self.prefilling[0]
            done = min(num_tokens, first.num_missing_tokens)
            num_tokens -= done
            if done < first.num_missing_tokens:
                self.prefilling[0] = first._replace(num_missing_tokens=first.num_missing_tokens - done)
                return
            self.prefilling.pop(0)
            self._sample_first(first)

    def _sample_first(self, demand: Demand) -> None:
        for claims, growth in self._counted(self._growths(demand)):
            claims.end_prompt(growth.end_blocks)
        if demand.expected_left > 1:
            self._start_decoding(
                demand._replace(
                    num_tokens=demand.num_tokens + 1,
                    num_outputs=demand.num_outputs + 1,
                    expected_left=demand.expected_left - 1,
                    likely_left=max(1, demand.likely_left - 1),
                    most_left=demand.most_left - 1,
                )
            )

    def _start_decoding(self, demand: Demand) -> None:
        base = demand.num_tokens - 1 - self.step
        growths = self._growths(demand)
        for claims, growth in self._counted(growths):
            claims.begin_decoding(growth)
        heapq.heappush(self.decoding, Decoder(self.step + demand.expected_left, base, growths))
        self.decoding_base += base

    def _end(self, ended: Decoder) -> None:
        self.decoding_base -= ended.base
        for claims, growth in self._counted(ended.growths):
            claims.end_decoding(growth)

    def _growths(self, demand: Demand) -> tuple[Growth, ...]:
        """As it is counted among everybody, and among guaranteed requests if it is one; the last decides about it."""
        held, growth = demand.num_tokens - 1, self.likely.growth
        likely = growth(self.step, held, demand.likely_left)
        return (likely,) if demand.is_spot else (likely, growth(self.step, held, demand.most_left))

    def _counted(self, growths: tuple[Growth, ...]) -> list[tuple[ExpectedClaims, Growth]]:
        return list(zip((self.likely, self.most), growths, strict=False))

    def _num_missing_tokens(self) -> int:
        return sum([demand.num_missing_tokens for demand in self.prefilling])

    def _spare_prompt_tokens(self) -> int:
        """Of the next step, beside the prompts under way."""
        return self._prompt_tokens_a_step() - self._num_missing_tokens()

    def _prompt_tokens_a_step(self) -> int:
        num_decoding = len(self.decoding)
        budget = token_budget(self.rules.limits, self.rules.step_time, num_decoding, self._num_context_tokens())
        return budget - num_decoding

    def _num_context_tokens(self) -> int:
        computed = sum([demand.num_tokens - demand.num_missing_tokens for demand in self.prefilling])
        return self.decoding_base + len(self.decoding) * self.step + computed
