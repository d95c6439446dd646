"""Spot requests: they may be preempted, guaranteed ones never are, and nobody's answer tells what happened to it."""

import os
import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scripted_engine import (
    RememberingRunner,
    ScriptedRunner,
    VirtualClock,
    collect,
    engine_of,
    request_of,
    run_until_idle,
)
from tidegate_engine.engine import Engine
from tidegate_engine.errors import QueueFull
from tidegate_engine.request import FinishReason, Request, ServiceClass, Terms
from tidegate_engine.runner import StepBatch
from tidegate_engine.scheduling.door import Door
from tidegate_engine.scheduling.queue import QueueLimits
from tidegate_engine.scheduling.step_fit import StepTime

NUM_EXAMPLES = int(os.environ.get("TIDEGATE_EXAMPLES", "25"))  # a thousand and more, with --timeout=0, for a long run
SPOT = Terms(service_class=ServiceClass.SPOT)
GIVEN_UP_AFTER_STEPS = 20_000


def spot_of(request_id: str, num_prompt: int, max_tokens: int, **sampling: object) -> Request:
    return request_of(request_id, num_prompt, max_tokens, terms=SPOT, **sampling)


class MixedWorkload:
    """Random requests of both classes through whole steps; every answer is compared with that of an idle engine."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.windows = rng.choice([(None,), (None,), (None, 24), (40,)])
        self.block_size = rng.choice([2, 4, 16])
        self.num_blocks = rng.randint(6, 40) * len(self.windows)
        self.runner = self.new_runner()
        self.max_step_tokens = rng.choice([48, 80, 400])
        self.engine = engine_of(
            self.runner,
            slots=rng.randint(1, 10),
            max_step_tokens=self.max_step_tokens,
            has_prefix_cache=rng.random() < 0.5,
        )
        self.requests: dict[str, Request] = {}
        self.cancelled: set[str] = set()
        self.answers: dict = {}

    def new_runner(self) -> RememberingRunner:
        return RememberingRunner(self.num_blocks, block_size=self.block_size, kv_windows=self.windows)

    def arrive(self) -> None:
        rng, kv = self.rng, self.engine.pool.kv
        longest = kv.longest_sequence(self.num_blocks, 50 * self.block_size)
        num_prompt = rng.randint(1, max(1, int(longest * rng.random())))
        max_tokens = rng.randint(1, max(1, longest + 1 - num_prompt))
        terms = Terms(
            tenant=rng.choice("ab"),
            priority=rng.randint(0, 2),
            service_class=rng.choice(list(ServiceClass)),
        )
        stops = frozenset(rng.sample(range(1, 1001), rng.choice([0, 0, 20])))
        name = f"r{len(self.requests)}"
        self.requests[name] = request_of(name, num_prompt, max_tokens, terms=terms, stop_token_ids=stops)
        self.engine.queue.add(self.requests[name])

    def cancel_somebody(self) -> None:
        name = self.rng.choice(list(self.requests))
        if not self.requests[name].finish_reason:
            self.cancelled.add(name)
            self.engine.end_soon(name, FinishReason.ABORT)

    def step(self) -> None:
        outputs = self.engine.step()
        collect(self.answers, outputs)
        pool = self.engine.pool
        pool.check(self.engine.scheduler.running)
        assert pool.num_used <= pool.num_blocks
        assert pool.num_cached <= pool.num_free == pool.num_blocks - pool.num_used
        assert not any(request.num_preemptions and not request.is_spot for request in self.requests.values())

    def run(self) -> None:
        num_requests = self.rng.randint(2, 14)
        for _ in range(GIVEN_UP_AFTER_STEPS):
            while len(self.requests) < num_requests and self.rng.random() < 0.3:
                self.arrive()
            if self.requests and self.rng.random() < 0.03:
                self.cancel_somebody()
            if not self.engine.has_work and len(self.requests) == num_requests:
                return
            self.step()
        raise AssertionError(f"somebody starves: {self.engine.scheduler.running}, {self.engine.queue.snapshot()}")

    def undisturbed(self, request: Request) -> tuple[list[int], FinishReason | None]:
        engine = engine_of(self.new_runner(), max_step_tokens=self.max_step_tokens)
        engine.queue.add(
            request_of(
                request.request_id,
                request.num_prompt_tokens,
                request.sampling.max_tokens,
                stop_token_ids=request.sampling.stop_token_ids,
            )
        )
        return run_until_idle(engine)[request.request_id]

    def check_answers(self) -> None:
        for name, request in self.requests.items():
            tokens, reason = self.answers[name]
            alone, alone_reason = self.undisturbed(request)
            assert tokens == alone[: len(tokens)]
            assert name in self.cancelled or (len(tokens), reason) == (len(alone), alone_reason)
        counters = self.engine.counters
        assert counters.generation_tokens == sum(len(tokens) for tokens, _ in self.answers.values())
        assert counters.preemptions == sum(request.num_preemptions for request in self.requests.values())


@settings(max_examples=NUM_EXAMPLES, deadline=None)
@given(st.integers(0, 10**9))
def test_guaranteed_requests_are_never_preempted_and_every_answer_is_that_of_an_idle_engine(seed):
    workload = MixedWorkload(random.Random(seed))
    workload.run()
    workload.check_answers()


def crowded(**runner: object) -> Engine:
    """A pool of 20 blocks where a spot request of 8 runs, and then a guaranteed one comes that needs 16 in the end."""
    engine = engine_of(ScriptedRunner(20, **runner))
    engine.queue.add(spot_of("spot", 100, 28))
    for _ in range(5):
        engine.step()
    engine.queue.add(request_of("sure", 180, 76))
    return engine


def test_a_guaranteed_request_takes_the_memory_of_a_spot_request_when_it_needs_it():
    engine = crowded()
    engine.step()
    assert {request.request_id for request in engine.scheduler.running} == {"spot", "sure"}, "12 + 8 blocks: for now"
    names = set()
    while engine.has_work:
        engine.step()
        names.add(tuple(sorted(request.request_id for request in engine.scheduler.running)))
    assert ("sure",) in names
    assert engine.counters.preemptions == 1
    assert engine.counters.finished[FinishReason.LENGTH] == 2


def test_preemptions_and_recomputed_tokens_are_counted_and_prompt_tokens_only_once():
    engine = crowded()
    (spot,) = engine.scheduler.running
    held = []
    while engine.has_work:
        held.append(spot.num_computed_tokens)
        engine.step()
    lost = max(before for before, after in pairwise(held) if after < before)
    assert engine.counters.recomputed_tokens == lost
    assert (engine.counters.prompt_tokens, engine.counters.generation_tokens) == (280, 104)


def test_a_preempted_request_is_first_of_its_class_and_never_refused():
    engine = crowded()
    (spot,) = engine.scheduler.running
    engine.queue.add(spot_of("later", 40, 5))
    while spot.num_preemptions == 0:
        engine.step()
    while "later" not in [request.request_id for request in engine.scheduler.running]:
        waiting = engine.queue.snapshot()
        assert not waiting or waiting[0] is spot or spot in engine.scheduler.running
        engine.step()
    assert spot in engine.scheduler.running or spot.finish_reason
    run_until_idle(engine)
    assert spot.finish_reason is FinishReason.LENGTH


def test_a_preempted_request_comes_back_behind_a_queue_that_filled_meanwhile():
    clock = VirtualClock()
    engine = crowded(clock=clock, step_time=StepTime(0.01))
    (spot,) = engine.scheduler.running
    engine.step()
    door = Door(engine, QueueLimits(2, 1e6), clock=clock)
    for name in ("waits", "waits-too"):
        door.enter(request_of(name, 180, 76))
    while not spot.num_preemptions:
        engine.step()
    with pytest.raises(QueueFull):
        door.enter(request_of("late", 180, 76))
    assert len(engine.queue) == 3, "one more than may wait: the door is asked once"
    run_until_idle(engine)
    assert (spot.finish_reason, spot.num_outputs) == (FinishReason.LENGTH, 28)


def test_a_resumed_request_is_not_preempted_again_in_every_step():
    """Two spot answers outgrow what was expected of them, over and over, in a pool that holds only one of them."""
    engine = engine_of(ScriptedRunner(40))
    for name in ("first", "second"):
        engine.queue.add(spot_of(name, 16, 600))
    answers = run_until_idle(engine)
    assert [len(tokens) for tokens, _ in answers.values()] == [600, 600]
    assert engine.counters.preemptions <= 3


def test_spot_requests_give_way_latest_first_and_least_urgent_before_that():
    engine = engine_of(ScriptedRunner(25))
    for name, priority in (("old", 0), ("idle", 7), ("young", 0)):
        terms = Terms(priority=priority, service_class=ServiceClass.SPOT)
        engine.queue.add(request_of(name, 100, 20, terms=terms))
    for _ in range(4):
        engine.step()
    gone = []
    for number, num_prompt in enumerate((100, 130)):
        engine.queue.add(request_of(f"sure-{number}", num_prompt, 20))
        engine.step()
        engine.step()
        running = {request.request_id for request in engine.scheduler.running}
        gone.append({"old", "idle", "young"} - running)
    assert gone == [{"idle"}, {"idle", "young"}]


def test_spot_requests_run_beside_a_guaranteed_one_that_waits_for_memory():
    engine = engine_of(ScriptedRunner(20))
    engine.queue.add(request_of("sure", 100, 200))
    engine.step()
    engine.queue.add(request_of("waits", 200, 100))
    engine.queue.add(spot_of("spot", 20, 5))
    engine.step()
    assert {request.request_id for request in engine.scheduler.running} == {"sure", "spot"}


def test_a_spot_request_lives_in_memory_that_a_guaranteed_one_claims_and_is_not_expected_to_use():
    engine = engine_of(ScriptedRunner(20))
    for _ in range(300):
        engine.lengths.observe(20, 4, is_cut_off=False)
    sure, spot = request_of("sure", 20, 300), spot_of("spot", 20, 200)  # the first one needs all blocks in the end
    engine.queue.add(sure)
    engine.queue.add(spot)
    engine.step()
    assert engine.scheduler.running == (sure, spot)
    run_until_idle(engine)
    assert spot.num_preemptions > 0
    assert (sure.num_outputs, spot.num_outputs) == (300, 200)


def test_a_spot_request_leaves_the_last_slot_to_a_guaranteed_one_that_waits():
    engine = engine_of(ScriptedRunner(20), slots=2)
    engine.queue.add(request_of("sure", 100, 200))
    engine.step()
    engine.queue.add(request_of("waits", 200, 100))
    engine.queue.add(spot_of("spot", 20, 5))
    engine.step()
    assert [request.request_id for request in engine.scheduler.running] == ["sure"]


def test_a_result_that_was_computed_before_a_preemption_is_dropped():
    """As if the runner worked a step ahead: the request loses its blocks while its row is computed."""

    class PreemptsMeanwhile(RememberingRunner):
        def run(self, batch: StepBatch):
            if len(self.batches) == 3:
                engine.scheduler.preempt(engine.scheduler.running[0])
            return super().run(batch)

    engine = engine_of(PreemptsMeanwhile(100))
    engine.queue.add(spot_of("spot", 30, 10))
    undisturbed = engine_of(RememberingRunner(100))
    undisturbed.queue.add(spot_of("spot", 30, 10))
    assert run_until_idle(engine) == run_until_idle(undisturbed)
    assert engine.counters.preemptions == 1


@pytest.mark.parametrize("num_steps", [1, 2, 3, 5])
def test_a_preempted_request_can_be_cancelled(num_steps):
    engine = engine_of(ScriptedRunner(20), max_step_tokens=64)
    engine.queue.add(spot_of("spot", 100, 20))
    for _ in range(num_steps):
        engine.step()
    engine.scheduler.preempt(engine.scheduler.running[0])
    engine.end_soon("spot", FinishReason.ABORT)
    engine.step()
    assert not engine.has_work
    assert (engine.pool.num_used, engine.scheduler.tenant_shares()) == (0, ())
