"""Everything the scheduler knows, at once and at random: what holds then holds for whatever a day brings.

Both classes, priorities, tenants, several choices of one prompt, windows, prefixes in common, grammars, stop tokens,
cancels at any moment, rows that fail and steps that raise. Invariants are checked after every step, and each answer is
compared with that of an engine that has nothing else to do.
"""

import os
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scripted_engine import ScriptedRunner, collect, engine_of, run_until_idle
from tidegate_engine.engine import Engine
from tidegate_engine.errors import Refused
from tidegate_engine.request import FinishReason, Request, SamplingParams, ServiceClass, Terms, new_request
from tidegate_engine.runner import ScheduledRow
from tidegate_engine.scheduling.door import Door
from tidegate_engine.scheduling.queue import QueueLimits
from tidegate_engine.scheduling.step_fit import StepTime

NUM_EXAMPLES = int(os.environ.get("TIDEGATE_EXAMPLES", "6"))  # a thousand and more, with --timeout=0, for a long run
WINDOWS = ((None,), (None,), (None, 24), (40,), (None, 6, 6), (None, 17, 17, 17, 17, 17))
STEP_TIME = StepTime(0.01, seconds_per_token=1e-4, seconds_per_context_token=1e-6)


class SoManyTokens:
    """A grammar that is complete after some tokens, whichever they are."""

    failure: str | None = None

    def __init__(self, num_tokens: int) -> None:
        self.taken: list[int] = []
        self._num_tokens = num_tokens

    @property
    def is_finished(self) -> bool:
        return len(self.taken) >= self._num_tokens

    def mask(self) -> bytes:
        return b"\xff" * 128

    def copy(self) -> "SoManyTokens":
        return SoManyTokens(self._num_tokens)

    def advance(self, token_id: int) -> None:
        self.taken.append(token_id)


class Day:
    """Random clients of one engine; `faults` are the requests whose rows fail after some tokens."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.windows = rng.choice(WINDOWS)
        self.block_size = rng.choice([2, 4, 16])
        self.num_blocks = rng.randint(8, 60) * len(self.windows)
        self.max_step_tokens = rng.choice([48, 80, 400])
        self.fault_at: dict[str, int] = {}
        self.last_refusal: Refused | None = None
        self.runner = self.new_runner()
        self.runner.fault = self.fault
        self.runner.failed = self.failed = {}
        self.engine = self.new_engine(self.runner, slots=rng.randint(1, 12), has_prefix_cache=rng.random() < 0.7)
        limits = QueueLimits(rng.randint(1, 20), max_wait_seconds=rng.choice([0.5, 1e9]))
        self.door = Door(self.engine, limits, clock=self.runner.clock)
        self.requests: dict[str, Request] = {}
        self.num_arrived = self.num_refused = 0
        self.cancelled: set[str] = set()
        self.answers: dict = {}
        self.beginnings = [[rng.randint(1, 3) for _ in range(200)] for _ in range(3)]

    def new_runner(self) -> ScriptedRunner:
        return ScriptedRunner(self.num_blocks, block_size=self.block_size, kv_windows=self.windows, step_time=STEP_TIME)

    def new_engine(self, runner: ScriptedRunner, **options: object) -> Engine:
        return engine_of(runner, max_step_tokens=self.max_step_tokens, **options)

    def fault(self, rows: tuple[ScheduledRow, ...]) -> Exception | None:
        guilty = [row.request_id for row in rows if row.num_outputs >= self.fault_at.get(row.request_id, 1 << 30)]
        return ValueError(f"{guilty} are poisoned") if guilty else None

    def arrive(self) -> None:
        """One client: a prompt and up to four choices."""
        rng = self.rng
        longest = self.engine.pool.kv.longest_sequence(self.num_blocks, 50 * self.block_size)
        num_prompt = rng.randint(1, max(1, int(longest * rng.random())))
        prompt = [*rng.choice(self.beginnings)[: rng.randint(0, num_prompt)], *(rng.randint(1, 3) for _ in range(400))]
        prompt = prompt[:num_prompt]
        terms = Terms(
            tenant=rng.choice("abc"),
            priority=rng.randint(0, 2),
            service_class=rng.choice(list(ServiceClass)),
            cache_salt=rng.choice([b"", b"", b"salt"]),
        )
        sampling = SamplingParams(
            rng.randint(1, max(1, longest + 1 - num_prompt)),
            stop_token_ids=frozenset(rng.sample(range(1, 1001), rng.choice([0, 0, 20]))),
            repetition_penalty=rng.choice([1.0, 1.0, 1.2]),
        )
        grammar_tokens = rng.choice([0, 0, 0, rng.randint(1, sampling.max_tokens)])
        for _ in range(rng.choice([1, 1, 1, 2, 4])):
            self.enter(prompt, sampling, terms, grammar_tokens)

    def enter(self, prompt: Sequence[int], sampling: SamplingParams, terms: Terms, grammar_tokens: int) -> None:
        name = f"r{self.num_arrived}"
        self.num_arrived += 1
        constraint = SoManyTokens(grammar_tokens) if grammar_tokens else None
        request = new_request(name, prompt, sampling, self.runner.clock(), terms, constraint=constraint)
        if self.rng.random() < 0.03:
            self.fault_at[name] = self.rng.randint(0, 3)
        elif self.rng.random() < 0.03:
            self.failed[name] = ValueError(f"{name} has no token")
        self.engine.pool.hash_tokens(request)
        try:
            wait_seconds = self.door.enter(request)
        except Refused as error:
            self.num_refused += 1
            self.last_refusal = error
            return
        assert 0 <= wait_seconds < 1e6
        self.requests[name] = request

    def cancel_somebody(self) -> None:
        name = self.rng.choice(list(self.requests))
        if not self.requests[name].finish_reason:
            self.cancelled.add(name)
            self.engine.end_soon(name, self.rng.choice([FinishReason.ABORT, FinishReason.STOP]))

    def step(self) -> None:
        engine = self.engine
        decoding = [request for request in engine.scheduler.running if request.num_outputs and not request.is_spot]
        before = {request.request_id: request.num_outputs for request in decoding}
        collect(self.answers, engine.step())
        engine.pool.check(engine.scheduler.running)
        for request in decoding:
            assert request.finish_reason or request.num_outputs == before[request.request_id] + 1, "skipped"
        live = [request for request in self.requests.values() if not request.finish_reason]
        assert not any(request.num_preemptions and not request.is_spot for request in live)
        assert len(live) == len(engine.scheduler.running) + len(engine.queue)
        assert self.num_arrived == self.num_refused + len(live) + sum(engine.counters.finished.values())
        assert engine.queue.num_prompt_tokens == sum(request.num_prompt_tokens for request in engine.queue.snapshot())
        asked = {share.tenant: share.num_live for share in engine.queue.tenant_shares()}
        assert sum(asked.values()) == len(live)

    def run(self, num_clients: int) -> None:
        """Ends once everybody was served: even after the last arrival nobody may take more steps than all tokens."""
        num_steps = num_came = 0
        while num_came < num_clients or self.engine.has_work:
            while num_came < num_clients and self.rng.random() < 0.3:
                self.arrive()
                num_came += 1
            if self.requests and self.rng.random() < 0.03:
                self.cancel_somebody()
            if self.engine.has_work:
                self.step()
            num_steps += 1
            assert num_steps < self.most_steps(num_clients), (
                f"somebody starves: {self.engine.scheduler.running}, {self.engine.queue.snapshot()}"
            )

    def most_steps(self, num_clients: int) -> int:
        """If all ran one after the other, a token a step, each started again as often as it was preempted."""
        tokens = sum((1 + request.num_preemptions) * request.num_tokens_at_end for request in self.requests.values())
        return 100 + 20 * num_clients + tokens

    def undisturbed(self, request: Request) -> tuple[list[int], FinishReason | None]:
        engine = self.new_engine(self.new_runner())
        grammar = request.constraint.copy() if request.constraint else None
        sampling, prompt = request.sampling, request.prompt_token_ids
        engine.queue.add(new_request("alone", prompt, sampling, 0.0, constraint=grammar))
        return run_until_idle(engine)["alone"]

    def check_answers(self) -> None:
        for name, request in self.requests.items():
            tokens, reason = self.answers[name]
            alone, alone_reason = self.undisturbed(request)
            assert tokens == alone[: len(tokens)], "an answer differs from an undisturbed one"
            if reason is FinishReason.ERROR:
                assert len(tokens) == self.fault_at.get(name, 0), "guilty from its fault on, and not before"
                assert name in self.fault_at or name in self.failed, "an innocent one failed"
            elif name not in self.cancelled:
                assert (len(tokens), reason) == (len(alone), alone_reason)
        counters, pool = self.engine.counters, self.engine.pool
        assert counters.generation_tokens == sum(len(tokens) for tokens, _ in self.answers.values())
        assert counters.preemptions == sum(request.num_preemptions for request in self.requests.values())
        assert self.last_refusal is None or (self.last_refusal.retry_after_seconds or 0) >= 0
        assert counters.prefix_hit_tokens <= counters.prefix_queried_tokens
        assert pool.num_used == 0
        assert not self.engine.queue.tenant_shares()


@settings(max_examples=NUM_EXAMPLES, deadline=None)
@given(st.integers(0, 10**9))
def test_whatever_comes_at_once_is_served_as_promised(seed):
    day = Day(random.Random(seed))
    day.run(num_clients=day.rng.randint(3, 25))
    day.check_answers()


@pytest.mark.parametrize("seed", range(1))
def test_a_long_day_leaves_nothing_behind(seed):
    day = Day(random.Random(seed))
    day.run(num_clients=80)
    day.check_answers()
