"""Replays a trace on the real engine in virtual time: no model, no waiting, the same outcome every time.

The benchmarks `admission`, `eta`, `prefix` and `latency` call replay(), and so do the tests that hold their figures.
Scheduler, pool, queue and door are the engine's own; a step takes what the machine's step times say, give or take the
noise that real machines have, and an answer ends where the trace's did.
"""

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle
from pathlib import Path

from tidegate_cli.bench.trace import TraceRequest
from tidegate_engine.counters import Counters
from tidegate_engine.engine import Engine, RequestOutput
from tidegate_engine.errors import Refused
from tidegate_engine.request import Request, SamplingParams, ServiceClass, Terms, new_request
from tidegate_engine.runner import RowOutput, ScheduledRow, StepBatch
from tidegate_engine.scheduling.budget import BudgetLimits
from tidegate_engine.scheduling.door import Door
from tidegate_engine.scheduling.queue import QueueLimits
from tidegate_engine.scheduling.step_fit import StepTime
from tidegate_engine.sim import MIDSIZE_MODEL

TRACES = Path(__file__).parent / "traces"
AZURE = TRACES / "azure_2023_conversation.csv.gz"
MOONCAKE = TRACES / "mooncake_conversation_20min.jsonl.gz"
EOS, ANY_TOKEN, FIRST_ID = 0, 1, 2
PREFIX_ID_TOKENS = 512


@dataclass(frozen=True)
class Machine:
    """`noise`: standard deviation of a step's time, as a part of it. `max_tokens`: of every request."""

    num_blocks: int
    slots: int = 256
    step_time: StepTime = MIDSIZE_MODEL
    noise: float = 0.1
    itl_seconds: float = 0.1
    max_tokens: int = 1024
    max_queue: int = 1000
    max_wait_seconds: float = 60.0
    usual_output_tokens: int = 300
    has_prefix_cache: bool = False


@dataclass
class Outcome:
    """What became of one request; times are virtual seconds, None where it did not come to that."""

    asked: TraceRequest
    service_class: ServiceClass
    promised_wait: float | None = None  # at acceptance
    retry_after: float | None = None  # of a refusal
    waited: float | None = None


@dataclass
class Replay:
    """Sums over the time while somebody waits: only then does it matter how full the pool is."""

    outcomes: list[Outcome] = field(default_factory=list)
    counters: Counters = field(default_factory=Counters)
    num_steps: int = 0
    seconds: float = 0.0
    contended_seconds: float = 0.0
    used_block_seconds: float = 0.0
    running_seconds: float = 0.0

    def occupancy(self, num_blocks: int) -> float:
        return self.used_block_seconds / (num_blocks * self.contended_seconds)

    def running(self) -> float:
        """Requests at once, on average."""
        return self.running_seconds / self.contended_seconds

    def output_tokens_a_second(self) -> float:
        return self.counters.generation_tokens / self.seconds


class TraceRunner:
    """Implements Runner: knows how long each answer was, and lets virtual time pass."""

    vocab_size = 1 << 30
    block_size = 16
    kv_windows = (None,)

    def __init__(self, machine: Machine) -> None:
        self.num_blocks = machine.num_blocks
        self.seconds = 0.0
        self.num_outputs: dict[str, int] = {}
        self._step_time = machine.step_time
        self._noise = machine.noise
        self._rng = random.Random(11)

    def clock(self) -> float:
        return self.seconds

    def run(self, batch: StepBatch) -> tuple[RowOutput | None, ...]:
        num_tokens = sum([len(row.token_ids) for row in batch.rows])
        seconds = self._step_time.predict(num_tokens, sum([row.start for row in batch.rows]))
        self.seconds += seconds * max(0.5, self._rng.gauss(1.0, self._noise))
        return tuple([None if row.sampling is None else self._sample(row) for row in batch.rows])

    def _sample(self, row: ScheduledRow) -> RowOutput:
        return RowOutput(EOS if row.num_outputs + 1 >= self.num_outputs[row.request_id] else ANY_TOKEN)


class Site:
    """An engine and its door in virtual time."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.result = Replay()
        self.runner = TraceRunner(machine)
        self.engine = Engine(
            self.runner,
            slots=machine.slots,
            limits=BudgetLimits(itl_seconds=machine.itl_seconds),
            clock=self.runner.clock,
            counters=self.result.counters,
            usual_output_tokens=machine.usual_output_tokens,
            has_prefix_cache=machine.has_prefix_cache,
        )
        limits = QueueLimits(machine.max_queue, machine.max_wait_seconds)
        self.door = Door(self.engine, limits, clock=self.runner.clock)
        self._waiting: dict[str, tuple[Request, Outcome]] = {}

    def arrive(self, asked: TraceRequest, service_class: ServiceClass = ServiceClass.GUARANTEED) -> None:
        """At the door, which may refuse it."""
        request, outcome = self._new(asked, service_class)
        try:
            outcome.promised_wait = self.door.enter(request)
        except Refused as refusal:
            outcome.retry_after = getattr(refusal, "retry_after_seconds", None)
            return
        self._waiting[request.request_id] = (request, outcome)

    def queue(self, asked: TraceRequest, service_class: ServiceClass = ServiceClass.GUARANTEED) -> None:
        """Past the door, for measurements in which nobody is refused."""
        request, outcome = self._new(asked, service_class)
        self.engine.queue.add(request)
        self._waiting[request.request_id] = (request, outcome)

    def step(self) -> tuple[RequestOutput, ...]:
        began, engine, result = self.runner.seconds, self.engine, self.result
        outputs = engine.step()
        result.num_steps += 1
        elapsed = self.runner.seconds - began
        if engine.queue:
            result.contended_seconds += elapsed
            result.used_block_seconds += elapsed * engine.pool.num_used
            result.running_seconds += elapsed * len(engine.scheduler.running)
        result.seconds = self.runner.seconds
        if len(engine.queue) < len(self._waiting):
            self._note_starts()
        return outputs

    def _new(self, asked: TraceRequest, service_class: ServiceClass) -> tuple[Request, Outcome]:
        number = len(self.result.outcomes)
        outcome = Outcome(asked, service_class)
        self.result.outcomes.append(outcome)
        sampling = SamplingParams(max_tokens=self.machine.max_tokens, stop_token_ids=frozenset({EOS}))
        terms = Terms(service_class=service_class)
        request = new_request(str(number), prompt_tokens(asked, number), sampling, self.runner.seconds, terms)
        self.engine.pool.hash_tokens(request)
        self.runner.num_outputs[request.request_id] = min(asked.num_output_tokens, self.machine.max_tokens)
        return request, outcome

    def _note_starts(self) -> None:
        for request, outcome in list(self._waiting.values()):
            if request.started_seconds is not None:
                outcome.waited = request.started_seconds - request.arrival_seconds
                del self._waiting[request.request_id]


def prompt_tokens(asked: TraceRequest, number: int) -> list[int]:
    """Equal where the trace says so; without prefix ids a prompt shares nothing with any other."""
    if not asked.prefix_ids:
        return [FIRST_ID + number] + [ANY_TOKEN] * (asked.num_prompt_tokens - 1)
    tokens = [token for prefix_id in asked.prefix_ids for token in [FIRST_ID + prefix_id] * PREFIX_ID_TOKENS]
    return tokens[: asked.num_prompt_tokens]


def at_rate(requests: Sequence[TraceRequest], factor: float) -> list[TraceRequest]:
    """The same requests, arriving so many times faster."""
    return [replace(request, arrival_seconds=request.arrival_seconds / factor) for request in requests]


def replay(
    site: Site,
    requests: Sequence[TraceRequest],
    *,
    has_door: bool = True,
    classes: Sequence[ServiceClass] = (ServiceClass.GUARANTEED,),
) -> Replay:
    """All requests, each at its time, to the end of the last; they are of these classes by turns."""
    coming = deque(zip(requests, cycle(classes), strict=False))
    take_in = site.arrive if has_door else site.queue
    while coming or site.engine.has_work:
        if not site.engine.has_work:
            site.runner.seconds = max(site.runner.seconds, coming[0][0].arrival_seconds)
        while coming and coming[0][0].arrival_seconds <= site.runner.seconds:
            take_in(*coming.popleft())
        if site.engine.has_work:
            site.step()
    return site.result
