"""When will a request start? The scheduler's own rules, played forward from event to event.

Between two events (a prompt is computed, an answer ends) all steps are alike, so their number times the fitted step
time is added at once. Admission counts with max_tokens as the scheduler does, but answers end where their expectation
says. Pure: outlooks admit() who runs and enqueue() who waits; place(newcomer) gives its wait and what follows from it.
"""

import heapq
from copy import copy
from dataclasses import dataclass
from typing import NamedTuple

from tidegate_core.kv_demand import KvDemand
from tidegate_engine.scheduling.budget import BudgetLimits, token_budget
from tidegate_engine.scheduling.chunks import MAX_PARTIAL_PROMPTS
from tidegate_engine.scheduling.expected_claims import ExpectedClaims, Growth
from tidegate_engine.scheduling.step_fit import StepTime


class Demand(NamedTuple):
    """What a request asks for, how far it is, and how many tokens it is expected to sample still.

    `num_missing_tokens` are those to compute before its next token. Admission counts with `max_tokens`.
    """

    num_missing_tokens: int
    num_tokens: int
    num_outputs: int
    max_tokens: int
    expected_left: int
    is_spot: bool = False

    @property
    def left(self) -> int:
        return self.max_tokens - self.num_outputs


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
    growth: Growth
    end_blocks: int
    is_spot: bool


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
        self.guaranteed = ExpectedClaims(rules.kv, rules.bucket_steps)
        self.everybody = ExpectedClaims(rules.kv, rules.bucket_steps)  # spot requests too

    def copy(self) -> "Forecast":
        twin = copy(self)
        twin.waits, twin.decoding, twin.prefilling = self.waits.copy(), self.decoding.copy(), self.prefilling.copy()
        twin.guaranteed, twin.everybody = self.guaranteed.copy(), self.everybody.copy()
        return twin

    def place(self, demand: Demand) -> tuple[float, "Forecast"]:
        """Seconds until a request that queues now is admitted, and the forecast with it admitted."""
        later = self.copy()
        later.enqueue(demand)
        return later.seconds, later

    def waits_after(self, elapsed_seconds: float, num_queued: int) -> list[Wait]:
        """The waits still ahead some time after the forecast was made, of those of its waiting that are queued still.

        An engine may be slower than its forecast: whoever should have started and is queued has a wait of 0.
        """
        first = max(0, len(self.waits) - num_queued)
        return [wait._replace(seconds=max(0.0, wait.seconds - elapsed_seconds)) for wait in self.waits[first:]]

    def enqueue(self, demand: Demand) -> None:
        """Plays on until the request is admitted, behind everybody queued before it."""
        while not self._has_room(demand) and self.seconds < self.rules.horizon_seconds:
            self._advance()
        self.admit(demand)
        if self.seconds > 0.0:
            self.waits.append(Wait(self.seconds, demand.num_tokens - demand.num_outputs))

    def admit(self, demand: Demand) -> None:
        self._count_at_end(self._end_blocks(demand), is_spot=demand.is_spot)
        if demand.num_outputs and demand.num_missing_tokens == 1:
            self._start_decoding(demand)
        else:
            self.prefilling.append(demand)
            self._count_prefilling(self._end_blocks(demand), is_spot=demand.is_spot)

    def _has_room(self, demand: Demand) -> bool:
        rules = self.rules
        if len(self.decoding) + len(self.prefilling) >= rules.slots:
            return False
        left = self._prompt_tokens_a_step() - self._num_missing_tokens()
        if left <= 0 and len(self.prefilling) >= MAX_PARTIAL_PROMPTS:
            return False
        growth = self._growth(demand) if demand.num_missing_tokens <= left else None
        claims = self.everybody if demand.is_spot else self.guaranteed
        return claims.leave_room(rules.num_blocks, self._end_blocks(demand), growth)

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
        end_blocks = self._end_blocks(demand)
        self._count_prefilling(-end_blocks, is_spot=demand.is_spot)
        if demand.expected_left == 1:
            self._count_at_end(-end_blocks, is_spot=demand.is_spot)
            return
        num_tokens, num_outputs = demand.num_tokens + 1, demand.num_outputs + 1
        self._start_decoding(
            demand._replace(num_tokens=num_tokens, num_outputs=num_outputs, expected_left=demand.expected_left - 1)
        )

    def _start_decoding(self, demand: Demand) -> None:
        base = demand.num_tokens - 1 - self.step
        growth = self._growth(demand)
        end_blocks = self._end_blocks(demand)
        decoder = Decoder(self.step + demand.expected_left, base, growth, end_blocks, demand.is_spot)
        heapq.heappush(self.decoding, decoder)
        self.decoding_base += base
        self.everybody.add(growth)
        if not demand.is_spot:
            self.guaranteed.add(growth)

    def _end(self, ended: Decoder) -> None:
        self.decoding_base -= ended.base
        self._count_at_end(-ended.end_blocks, is_spot=ended.is_spot)
        self.everybody.remove(ended.growth)
        if not ended.is_spot:
            self.guaranteed.remove(ended.growth)

    def _count_at_end(self, num_blocks: int, *, is_spot: bool) -> None:
        self.everybody.at_end += num_blocks
        if not is_spot:
            self.guaranteed.at_end += num_blocks

    def _count_prefilling(self, num_blocks: int, *, is_spot: bool) -> None:
        self.everybody.prefilling += num_blocks
        if not is_spot:
            self.guaranteed.prefilling += num_blocks

    def _growth(self, demand: Demand) -> Growth:
        return self.everybody.growth(self.step, demand.num_tokens - 1, demand.left)

    def _num_missing_tokens(self) -> int:
        return sum([demand.num_missing_tokens for demand in self.prefilling])

    def _prompt_tokens_a_step(self) -> int:
        num_decoding = len(self.decoding)
        budget = token_budget(self.rules.limits, self.rules.step_time, num_decoding, self._num_context_tokens())
        return budget - num_decoding

    def _num_context_tokens(self) -> int:
        computed = sum([demand.num_tokens - demand.num_missing_tokens for demand in self.prefilling])
        return self.decoding_base + len(self.decoding) * self.step + computed

    def _end_blocks(self, demand: Demand) -> int:
        return self.rules.kv.prefilling_blocks(demand.num_tokens - 1 + demand.left)
