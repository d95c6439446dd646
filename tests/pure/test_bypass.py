"""Small requests may pass a blocked big one, which starts exactly when it would have started without them."""

import os
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from scripted_engine import request_of
from tidegate_core.kv_demand import KvDemand
from tidegate_engine.request import FinishReason
from tidegate_engine.scheduling.admission import Claim, peak_blocks
from tidegate_engine.scheduling.blocks import BlockPool
from tidegate_engine.scheduling.bypass import BlockedHead
from tidegate_engine.scheduling.chunks import PromptShares
from tidegate_engine.scheduling.queue import RequestQueue
from tidegate_engine.scheduling.scheduler import Scheduler

NUM_EXAMPLES = int(os.environ.get("TIDEGATE_EXAMPLES", "30"))
BLOCK_SIZE = 4
KINDS = ((None,), (None, None), (None, 6))
claims = st.builds(Claim, left=st.integers(1, 40), held=st.integers(0, 40))


class NobodyPasses(Scheduler):
    def _let_pass(self, shares: PromptShares) -> None:
        pass


def later(claims: list[Claim], num_steps: int) -> list[Claim]:
    return [Claim(left - num_steps, held + num_steps) for left, held in claims if left > num_steps]


def first_fit(head: Claim, others: list[Claim], num_blocks: int, kv: KvDemand) -> int:
    """Step by step, by the formula that admits."""
    start = 0
    while peak_blocks([*later(others, start), head], [], kv) > num_blocks:
        start += 1
    return start


@settings(max_examples=8 * NUM_EXAMPLES, deadline=None)
@given(st.lists(claims, min_size=1, max_size=6), claims, claims, st.sampled_from(KINDS), st.integers(0, 12))
def test_the_start_is_never_too_late_and_what_passes_never_moves_it(others, head, passer, windows, spare):
    kv = KvDemand(windows, BLOCK_SIZE, max_chunk=8)
    num_blocks = max(peak_blocks([claim], [], kv) for claim in (head, passer, *others)) + spare
    while peak_blocks(others, [], kv) > num_blocks:
        others.pop()
    start = first_fit(head, others, num_blocks, kv)
    blocked = BlockedHead.of(head, others, num_blocks, kv)
    assert blocked.start <= start
    if windows == (None,) and start == 0:
        assert blocked.start == 0
    with_passer = [*others, passer]
    if peak_blocks(with_passer, [], kv) <= num_blocks and not blocked.is_delayed_by(passer):
        assert first_fit(head, with_passer, num_blocks, kv) == start


def starts(scheduler: Scheduler, seed: int) -> tuple[dict[str, int], list[str]]:
    """Step at which each of some requests started that all came at once, and in which order."""
    rng = random.Random(seed)
    for i in range(14):
        is_big = rng.random() < 0.4
        num_prompt, max_tokens = (rng.randint(60, 200), rng.randint(20, 110)) if is_big else (rng.randint(1, 20),) * 2
        scheduler.queue.add(request_of(str(i), num_prompt, max_tokens))
    started: dict[str, int] = {}
    for step_number in range(5000):
        if not (scheduler.running or scheduler.queue):
            return started, list(started)
        step = scheduler.schedule(scheduler.num_decoding + 300)
        for request, row in zip(step.requests, step.rows, strict=True):
            started.setdefault(request.request_id, step_number)
            scheduler.computed(request, len(row.token_ids), 7 if row.sampling else None)
            if request.num_outputs >= request.sampling.max_tokens:
                scheduler.end(request.request_id, FinishReason.LENGTH)
        scheduler.pool.check(scheduler.running)
    raise AssertionError(f"somebody starves: {scheduler.queue.snapshot()}")


@settings(max_examples=NUM_EXAMPLES // 2, deadline=None)
@given(st.integers(0, 10**9))
def test_whoever_is_passed_first_starts_when_it_would_have_started_anyway(seed):
    passing, order = starts(Scheduler(BlockPool(20, 16), RequestQueue(), slots=10), seed)
    waiting, _ = starts(NobodyPasses(BlockPool(20, 16), RequestQueue(), slots=10), seed)
    in_order = sorted(order, key=int)
    passed = next((name for name, other in zip(in_order, order, strict=True) if name != other), None)
    if passed:
        assert passing[passed] == waiting[passed]


def test_somebody_does_pass():
    """Of some fifty small requests behind blocked big ones many start earlier."""
    num_earlier = 0
    for seed in range(8):
        passing, _ = starts(Scheduler(BlockPool(20, 16), RequestQueue(), slots=10), seed)
        waiting, _ = starts(NobodyPasses(BlockPool(20, 16), RequestQueue(), slots=10), seed)
        num_earlier += sum(passing[name] < waiting[name] for name in passing)
    assert num_earlier > 8
