"""Blocks in common are counted once, and never for somebody who may end before another holder does."""

import os
import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scheduler_talks import Talks
from tidegate_engine.request import FinishReason, Request, SamplingParams, ServiceClass, Terms, new_request
from tidegate_engine.scheduling.blocks import BlockPool
from tidegate_engine.scheduling.prefix_cache import PrefixCache
from tidegate_engine.scheduling.queue import RequestQueue
from tidegate_engine.scheduling.running import claim_of
from tidegate_engine.scheduling.scheduler import Scheduler
from tidegate_engine.scheduling.shared_blocks import MAX_SEGMENTS, Credit, SharedBlocks

NUM_EXAMPLES = int(os.environ.get("TIDEGATE_EXAMPLES", "60"))  # a thousand and more, with --timeout=0, for a long run


def test_whoever_comes_while_its_prompt_is_computed_is_counted_and_the_others_less():
    shared = SharedBlocks()
    shared.join("first", [])
    shared.hold("first", [1, 2, 3])
    shared.decode("first", 50)
    assert shared.credits([1, 2, 3]) == [Credit(3, 50)]
    assert shared.join("second", [1, 2, 3]) == {"first": 3}
    assert (shared.num_shared("first"), shared.num_shared("second"), shared.total) == (3, 0, 3)


@pytest.mark.parametrize(("end", "counted"), [(40, "first"), (60, "second")])
def test_once_all_ends_are_known_the_last_one_is_counted(end, counted):
    shared = SharedBlocks()
    shared.join("first", [])
    shared.hold("first", [1, 2, 3])
    shared.decode("first", 50)
    shared.join("second", [1, 2])
    shared.decode("second", end)
    assert {name: shared.num_shared(name) for name in ("first", "second")} == {
        "first": 0 if counted == "first" else 2,
        "second": 0 if counted == "second" else 2,
    }
    left = "second" if counted == "first" else "first"
    shared.leave(counted)
    assert (shared.num_shared(left), shared.total) == (0, 0)
    shared.leave(left)
    assert shared.credits([1, 2, 3]) == []


def test_a_request_joins_few_segments_and_is_counted_for_the_rest():
    shared = SharedBlocks()
    for number in range(2 * MAX_SEGMENTS):
        shared.join(f"r{number}", [])
        shared.hold(f"r{number}", range(10 * number, 10 * number + 5))
    assert sum(credit.num_blocks for credit in shared.credits(range(200))) == 5 * MAX_SEGMENTS
    shared.join("all", range(200))
    assert shared.total == 5 * MAX_SEGMENTS
    for number in range(2 * MAX_SEGMENTS):
        shared.leave(f"r{number}")
    assert shared.total == 0


class InFull(SharedBlocks):
    """Never finds that anything is shared."""

    def _parts(self, blocks):
        return []


class FewBeginnings(Talks):
    """What is promised is compared with the tables."""

    def __init__(self, rng: random.Random) -> None:
        self.windows = rng.choice([(None,), (None,), (None, None), (None, 9), (None, 6, 6), (7,)])
        block_size = rng.choice([1, 2, 4])
        max_chunk = rng.randint(20, 90)
        pool = BlockPool(
            rng.randint(12, 70) * len(self.windows),
            block_size,
            self.windows,
            max_chunk,
            PrefixCache(self.windows, block_size),
        )
        super().__init__(rng, pool, slots=rng.randint(2, 12), max_chunk=max_chunk)
        self.beginnings = [[rng.randint(0, 1) for _ in range(200)] for _ in range(2)]
        self.spot_share = rng.choice([0.0, 0.0, 0.3])
        self.most_shared = 0

    def new_request(self, name: str) -> Request:
        rng = self.rng
        longest = self.pool.kv.longest_sequence(self.pool.num_blocks, 150)
        total = rng.randint(2, longest + 1)
        num_prompt = min(total - 1, rng.randint(1, longest // rng.choice([1, 2, 4]) + 1))
        begins = rng.choice(self.beginnings)[: rng.choice([0, num_prompt, num_prompt - num_prompt % 8])]
        prompt = (begins + [rng.randint(0, 1) for _ in range(num_prompt)])[:num_prompt]
        terms = Terms(service_class=ServiceClass.SPOT if rng.random() < self.spot_share else ServiceClass.GUARANTEED)
        return new_request(name, prompt, SamplingParams(total - num_prompt), 0.0, terms)

    def check(self) -> None:
        super().check()
        self.check_counts()

    def check_counts(self) -> None:
        """At each end to come, what is counted is no less than what the tables and the growth still to come need."""
        running = self.scheduler._running
        self.most_shared = max(self.most_shared, running.shared.total)
        now = running.num_steps + 1
        sure = [request for request in running.all if not request.is_spot]
        prefilling = [request for request in sure if request.request_id in running.prefilling]
        promised = running._skyline.peak(now, None, running._prompts())
        ends = {request.request_id: now + claim_of(request).left for request in sure}
        for instant in {*ends.values()}:
            alive = [each for each in sure if ends[each.request_id] >= instant or each in prefilling]
            assert self.held_at(alive, instant - now) <= promised
        assert promised <= self.pool.num_blocks

    def held_at(self, alive: list[Request], num_steps: int) -> int:
        """Blocks of groups that see everything once; of groups with a window what they are counted with."""
        kv, growing = self.pool.kv, [group for group, window in enumerate(self.windows) if window is None]
        tables = [table for each in alive if each.block_tables for table in each.block_tables]
        held = {block for each in alive if each.block_tables for group in growing for block in each.block_tables[group]}
        assert tables or not held
        num_blocks = len(held)
        for request in alive:
            left, num_held = claim_of(request)
            tokens = num_held + min(left, num_steps)
            in_table = len(request.block_tables[0]) if request.block_tables else 0
            all_blocks = -(-tokens // self.pool.block_size)
            is_prompt = request.num_outputs == 0 or request.num_computed_tokens < request.num_tokens - 1
            whole = kv.prefilling_blocks(tokens) if is_prompt else kv.decoding_blocks(tokens)
            num_blocks += whole - len(growing) * all_blocks + len(growing) * max(0, all_blocks - in_table)
        return num_blocks

    def run(self, num_requests: int) -> None:
        super().run(num_requests)
        shared = self.scheduler._running.shared
        assert (shared.total, shared._segment_of, shared._held) == (0, {}, {})


@settings(max_examples=NUM_EXAMPLES, deadline=None)
@given(st.integers(0, 10**9))
@example(501530)  # a small request passes a blocked one when the cache has lost what it was known to have of it
def test_what_is_counted_once_is_never_needed_twice(seed):
    """OutOfBlocks would end it: a guaranteed request is never preempted."""
    rng = random.Random(seed)
    talks = FewBeginnings(rng)
    talks.run(rng.randint(2, 16))


def test_the_random_talks_do_share():
    runs = [FewBeginnings(random.Random(seed)) for seed in range(20)]
    for talks in runs:
        talks.run(16)
    assert sum(talks.most_shared > 0 for talks in runs) > 6


@pytest.mark.parametrize(("has_credit", "num_running"), [(True, 6), (False, 2)])
def test_requests_with_a_common_beginning_run_together_where_they_would_not_fit_in_full(has_credit, num_running):
    pool = BlockPool(40, 4, prefixes=PrefixCache((None,), 4))
    queue = RequestQueue()
    scheduler = Scheduler(pool, queue, slots=20)
    if not has_credit:
        scheduler._running.shared = InFull()
    for number in range(9):
        queue.add(new_request(str(number), [7] * 60 + [number], SamplingParams(12), 0.0))
    counts = []
    while scheduler.running or queue:
        step = scheduler.schedule(scheduler.num_decoding + 64)
        for request, row in zip(step.requests, step.rows, strict=True):
            scheduler.computed(request, len(row.token_ids), 9 if row.sampling else None)
            if request.num_outputs >= request.sampling.max_tokens:
                scheduler.end(request.request_id, FinishReason.LENGTH)
        pool.check(scheduler.running)
        counts.append(len(scheduler.running))
    assert max(counts) == num_running
