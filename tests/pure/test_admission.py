"""The peak formula against brute force, and the promise that rests on it: what is admitted never runs out of blocks."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scripted_engine import request_of
from tidegate_core.kv_demand import KvDemand
from tidegate_engine.errors import BadRequest, NeverFits
from tidegate_engine.request import FinishReason, Request
from tidegate_engine.scheduling.admission import Claim, check_can_ever_fit, peak_blocks
from tidegate_engine.scheduling.blocks import BlockPool
from tidegate_engine.scheduling.queue import RequestQueue
from tidegate_engine.scheduling.scheduler import Scheduler

claims = st.lists(st.builds(Claim, left=st.integers(1, 60), held=st.integers(0, 60)), max_size=6)
block_sizes = st.sampled_from([1, 3, 16])


def held_blocks(claim: Claim, step: int, block_size: int) -> int:
    return -(-(claim.held + step) // block_size) if step <= claim.left else 0


@settings(deadline=None)
@given(decoding=claims, block_size=block_sizes)
def test_the_peak_of_decoding_requests_is_exact(decoding, block_size):
    instants = range(1, 62)
    truth = max(sum(held_blocks(claim, step, block_size) for claim in decoding) for step in instants)
    assert peak_blocks(decoding, [], KvDemand((None,), block_size)) == truth
    for floor in (truth - 1, truth, truth + 1):
        assert peak_blocks(decoding, [], KvDemand((None,), block_size), at_least=floor) == max(truth, floor)


@settings(deadline=None)
@given(decoding=claims, prefilling=claims, block_size=block_sizes, data=st.data())
def test_no_delay_of_a_prompt_holds_more_than_the_peak(decoding, prefilling, block_size, data):
    peak = peak_blocks(decoding, prefilling, KvDemand((None,), block_size))
    delays = data.draw(st.lists(st.integers(0, 80), min_size=len(prefilling), max_size=len(prefilling)))
    for step in range(1, 145):
        used = sum(held_blocks(claim, step, block_size) for claim in decoding)
        for claim, delay in zip(prefilling, delays, strict=True):
            used += held_blocks(claim, max(1, step - delay), block_size)
        assert used <= peak


class Workload:
    """Random requests through the scheduler alone: chunked prompts, budgets that change each step, early ends."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        block_size = rng.choice([2, 4, 16])
        self.pool = BlockPool(rng.randint(4, 40), block_size)
        self.queue = RequestQueue()
        self.scheduler = Scheduler(self.pool, self.queue, slots=rng.randint(1, 12))
        self.num_arrived = 0
        self.occupancy = 0

    def arrive(self) -> None:
        pool_tokens = self.pool.num_blocks * self.pool.block_size
        num_prompt = self.rng.randint(1, max(1, int(pool_tokens * self.rng.random())))
        max_tokens = self.rng.randint(1, pool_tokens + 1 - num_prompt)
        check_can_ever_fit(num_prompt, max_tokens, context=10**9, pool_tokens=pool_tokens)
        self.queue.add(request_of(str(self.num_arrived), num_prompt, max_tokens))
        self.num_arrived += 1

    def step(self, stop_chance: float, budget: int) -> None:
        step = self.scheduler.schedule(self.scheduler.num_decoding + budget)
        assert step.rows, "whenever somebody waits or runs, somebody advances"
        self.occupancy += self.pool.num_used
        for request, row in zip(step.requests, step.rows, strict=True):
            self.scheduler.computed(request, len(row.token_ids), 7 if row.sampling else None)
            is_complete = request.num_outputs >= request.sampling.max_tokens
            if is_complete or (row.sampling and self.rng.random() < stop_chance):
                self.scheduler.end(request.request_id, FinishReason.STOP)
        self.pool.check(self.scheduler.running)

    def run(self) -> None:
        stop_chance = self.rng.choice([0.0, 0.0, 0.02, 0.2])
        num_requests = self.rng.randint(2, 14)
        while self.scheduler.running or self.queue or self.num_arrived < num_requests:
            while self.num_arrived < num_requests and self.rng.random() < 0.5:
                self.arrive()
            if self.scheduler.running or self.queue:
                self.step(stop_chance, self.rng.randint(1, 60))
        assert self.pool.num_free == self.pool.num_blocks


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**9))
def test_an_admitted_request_never_runs_out_of_blocks(seed):
    Workload(random.Random(seed)).run()  # OutOfBlocks would end it: nothing here could be preempted


class ReserveEverything(Scheduler):
    """Admits only what fits with everybody's max_tokens reserved at once."""

    def _lacking_blocks(self, candidate: Request, *, is_partial: bool) -> int:
        return 1


class AsksEveryStep(Scheduler):
    """Never trusts a verdict of the pool for longer than a step."""

    def _steps_until_fewer(self, num_lacking: int) -> int:
        return 1


def steps_to_finish(scheduler_type: type[Scheduler]) -> tuple[int, float]:
    """Steps, and mean share of the pool in use, for 150 chats of different lengths."""
    rng = random.Random(11)
    workload = Workload(rng)
    workload.pool = BlockPool(256, 16)
    workload.scheduler = scheduler_type(workload.pool, workload.queue, slots=256)
    for i in range(150):
        workload.queue.add(request_of(str(i), rng.randint(20, 400), rng.randint(50, 300)))
    num_steps = 0
    while workload.scheduler.running or workload.queue:
        workload.step(0.0, 2048)
        num_steps += 1
    return num_steps, workload.occupancy / num_steps / workload.pool.num_blocks


def test_more_of_the_pool_is_used_than_by_reserving_everything():
    num_steps, occupancy = steps_to_finish(Scheduler)
    reserving_steps, reserving_occupancy = steps_to_finish(ReserveEverything)
    assert occupancy > 1.2 * reserving_occupancy
    assert num_steps < 0.85 * reserving_steps


def starts(scheduler: Scheduler, rng: random.Random) -> list[list[str]]:
    """Who runs after each step, of requests that are too many for the pool and all arrive at once."""
    for i in range(12):
        scheduler.queue.add(request_of(str(i), rng.randint(1, 120), rng.randint(1, 180)))
    running = []
    while scheduler.running or scheduler.queue:
        step = scheduler.schedule(scheduler.num_decoding + 50)
        for request, row in zip(step.requests, step.rows, strict=True):
            scheduler.computed(request, len(row.token_ids), 7 if row.sampling else None)
            if request.num_outputs >= request.sampling.max_tokens:
                scheduler.end(request.request_id, FinishReason.STOP)
        running.append([request.request_id for request in scheduler.running])
    return running


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**9))
def test_a_blocked_request_starts_at_the_first_step_at_which_the_pool_allows_it(seed):
    """Time alone makes room: whoever starts later holds less when the others end."""
    patient, impatient = (
        starts(kind(BlockPool(20, 16), RequestQueue(), slots=8), random.Random(seed))
        for kind in (Scheduler, AsksEveryStep)
    )
    assert patient == impatient


def test_a_request_beyond_the_context_is_refused_with_numbers():
    with pytest.raises(NeverFits, match="900 prompt tokens \\+ max_tokens 200 = 1100 tokens, but the context is 1024"):
        check_can_ever_fit(900, 200, context=1024, pool_tokens=10_000)


def test_a_request_beyond_the_pool_is_refused_with_numbers():
    with pytest.raises(NeverFits, match="but this engine's KV cache holds 512 tokens"):
        check_can_ever_fit(400, 114, context=1024, pool_tokens=512)
    check_can_ever_fit(400, 113, context=1024, pool_tokens=512)


@pytest.mark.parametrize(("num_prompt", "max_tokens"), [(0, 5), (5, 0)])
def test_an_empty_prompt_or_answer_is_a_bad_request(num_prompt, max_tokens):
    with pytest.raises(BadRequest, match="at least 1"):
        check_can_ever_fit(num_prompt, max_tokens, context=1024, pool_tokens=512)
