"""When will a request start? The scheduler's own rules, played forward from event to event.

Between two events (a prompt is computed, an answer ends) all steps are alike, so their number times the fitted step
time is added at once. Answers are expected to be of the usual length, but admission counts with max_tokens as the
scheduler does. Pure: Forecast.of(rules, running, waiting).place(newcomer) gives its wait and what follows.
"""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self

from tidegate_core.kv_demand import KvDemand
from tidegate_engine.request import Request
from tidegate_engine.scheduling.admission import Claim, peak_blocks
from tidegate_engine.scheduling.budget import BudgetLimits, token_budget
from tidegate_engine.scheduling.chunks import MAX_PARTIAL_PROMPTS
from tidegate_engine.scheduling.step_fit import StepTime


class Demand(NamedTuple):
    """What a request asks for, how far it is, and how many tokens it is expected to sample still."""

    num_missing_tokens: int
    num_tokens: int
    num_outputs: int
    max_tokens: int
    expected_left: int


def demand_of(request: Request, usual_output_tokens: int) -> Demand:
    """An answer longer than usual is expected to go on for a quarter of the usual length.

    The engine thread may be in the middle of recording a step, so that nothing seems to be missing: a token always is.
    """
    num_outputs = request.num_outputs
    left = request.sampling.max_tokens - num_outputs
    expected = max(usual_output_tokens - num_outputs, usual_output_tokens // 4, 1)
    return Demand(
        num_missing_tokens=max(1, request.num_tokens - request.num_computed_tokens - request.num_hit_tokens),
        num_tokens=request.num_tokens,
        num_outputs=num_outputs,
        max_tokens=request.sampling.max_tokens,
        expected_left=max(1, min(left, expected)),
    )


@dataclass(frozen=True)
class Rules:
    """What does not change while a forecast is made."""

    slots: int
    num_blocks: int
    kv: KvDemand
    limits: BudgetLimits
    step_time: StepTime
    horizon_seconds: float  # beyond this the exact wait matters to nobody


class Decoder(NamedTuple):
    """A request that samples a token a step and holds `base + step` tokens. Sorts by the step of its expected end."""

    expected_end: int
    latest_end: int
    base: int


@dataclass
class Forecast:
    """The engine at a later moment: `seconds` and `step` from when the forecast began."""

    rules: Rules
    seconds: float = 0.0
    step: int = 0
    waits: list[float] = field(default_factory=list)  # of those queued that could not start at once, in order
    decoding: list[Decoder] = field(default_factory=list)  # a heap
    prefilling: list[Demand] = field(default_factory=list)
    decoding_base: int = 0  # sum over `decoding`, and below over all: kept up to date, for each event asks for them
    blocks_at_end: int = 0

    @classmethod
    def of(cls, rules: Rules, running: Iterable[Demand], waiting: Iterable[Demand]) -> Self:
        forecast = cls(rules)
        for demand in running:
            forecast._admit(demand)
        for demand in waiting:
            forecast.enqueue(demand)
        return forecast

    def place(self, demand: Demand) -> tuple[float, "Forecast"]:
        """Seconds until a request that queues now is admitted, and the forecast with it admitted."""
        later = replace(self, waits=self.waits.copy(), decoding=self.decoding.copy(), prefilling=self.prefilling.copy())
        later.enqueue(demand)
        return later.seconds, later

    def waits_after(self, elapsed_seconds: float, num_queued: int) -> list[float]:
        """The waits still ahead some time after the forecast was made, of those of its waiting that are queued still.

        An engine may be slower than its forecast: whoever should have started and is queued has a wait of 0.
        """
        first = max(0, len(self.waits) - num_queued)
        return [max(0.0, wait - elapsed_seconds) for wait in self.waits[first:]]

    def enqueue(self, demand: Demand) -> None:
        """Plays on until the request is admitted, behind everybody queued before it."""
        while not self._has_room(demand) and self.seconds < self.rules.horizon_seconds:
            self._advance()
        self._admit(demand)
        if self.seconds > 0.0:
            self.waits.append(self.seconds)

    def _admit(self, demand: Demand) -> None:
        self.blocks_at_end += self._end_blocks(demand)
        if demand.num_outputs:
            self._start_decoding(demand)
        else:
            self.prefilling.append(demand)

    def _has_room(self, demand: Demand) -> bool:
        rules = self.rules
        if len(self.decoding) + len(self.prefilling) >= rules.slots:
            return False
        missing = sum(other.num_missing_tokens for other in self.prefilling)
        left = self._prompt_tokens_a_step() - missing
        if left <= 0 and len(self.prefilling) >= MAX_PARTIAL_PROMPTS:
            return False
        if self.blocks_at_end + self._end_blocks(demand) <= rules.num_blocks:
            return True
        decoding = [Claim(left=d.latest_end - self.step, held=d.base + self.step) for d in self.decoding]
        prefilling = [_claim(other) for other in self.prefilling]
        is_partial = demand.num_missing_tokens > left
        is_partial |= rules.kv.prefilling_blocks(demand.num_tokens) > rules.kv.decoding_blocks(demand.num_tokens)
        (prefilling if is_partial else decoding).append(_claim(demand))
        return peak_blocks(decoding, prefilling, rules.kv, at_least=rules.num_blocks) <= rules.num_blocks

    def _advance(self) -> None:
        """On to the next event: the first prompt is computed, or the next answer ends."""
        if not self.prefilling and not self.decoding:
            raise AssertionError("a request that fits alone has room in an empty engine")
        chunk = min(self._prompt_tokens_a_step(), sum(demand.num_missing_tokens for demand in self.prefilling))
        num_steps = []
        if self.prefilling:
            num_steps.append(-(-self.prefilling[0].num_missing_tokens // chunk))
        if self.decoding:
            num_steps.append(self.decoding[0].expected_end - self.step)
        steps = max(1, min(num_steps))
        num_tokens = len(self.decoding) + chunk
        self.seconds += steps * self.rules.step_time.predict(num_tokens, self._num_context_tokens())
        self.step += steps
        while self.decoding and self.decoding[0].expected_end <= self.step:
            ended = heapq.heappop(self.decoding)
            self.decoding_base -= ended.base
            self.blocks_at_end -= self.rules.kv.prefilling_blocks(ended.base + ended.latest_end)
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
        if demand.expected_left == 1:
            self.blocks_at_end -= self._end_blocks(demand)
            return
        self._start_decoding(
            demand._replace(
                num_tokens=demand.num_tokens + 1,
                num_outputs=demand.num_outputs + 1,
                expected_left=demand.expected_left - 1,
            )
        )

    def _start_decoding(self, demand: Demand) -> None:
        claim = _claim(demand)
        decoder = Decoder(self.step + demand.expected_left, self.step + claim.left, claim.held - self.step)
        heapq.heappush(self.decoding, decoder)
        self.decoding_base += decoder.base

    def _prompt_tokens_a_step(self) -> int:
        num_decoding = len(self.decoding)
        budget = token_budget(self.rules.limits, self.rules.step_time, num_decoding, self._num_context_tokens())
        return budget - num_decoding

    def _num_context_tokens(self) -> int:
        computed = sum(demand.num_tokens - demand.num_missing_tokens for demand in self.prefilling)
        return self.decoding_base + len(self.decoding) * self.step + computed

    def _end_blocks(self, demand: Demand) -> int:
        return self.rules.kv.prefilling_blocks(demand.num_tokens + demand.max_tokens - demand.num_outputs - 1)


def _claim(demand: Demand) -> Claim:
    return Claim(left=demand.max_tokens - demand.num_outputs, held=demand.num_tokens - 1)
