"""What a step computes: decodes first, several prompts at once, first come first served, never past the budget."""

from scripted_engine import request_of
from tidegate_engine.request import FinishReason
from tidegate_engine.scheduling.blocks import BlockPool
from tidegate_engine.scheduling.chunks import MAX_PARTIAL_PROMPTS
from tidegate_engine.scheduling.queue import RequestQueue
from tidegate_engine.scheduling.scheduler import Scheduler, Step


def scheduler_of(*, num_blocks: int = 1000, slots: int = 64) -> Scheduler:
    return Scheduler(BlockPool(num_blocks, 16), RequestQueue(), slots=slots)


def advance(scheduler: Scheduler, token_budget: int) -> Step:
    """One step in which every request that samples gets a token and none stops by itself."""
    step = scheduler.schedule(token_budget)
    for request, row in zip(step.requests, step.rows, strict=True):
        scheduler.computed(request, len(row.token_ids), 5 if row.sampling else None)
        if request.num_outputs >= request.sampling.max_tokens:
            scheduler.end(request.request_id, FinishReason.LENGTH)
    return step


def shares(step: Step) -> dict[str, int]:
    return {row.request_id: len(row.token_ids) for row in step.rows}


def test_a_prompt_is_computed_in_chunks_and_sampled_at_its_end():
    scheduler = scheduler_of()
    scheduler.queue.add(request_of("long", 250, 3))
    steps = [advance(scheduler, 100) for _ in range(5)]
    assert [(row.start, len(row.token_ids), row.sampling is None) for step in steps for row in step.rows] == [
        (0, 100, True),
        (100, 100, True),
        (200, 50, False),
        (250, 1, False),
        (251, 1, False),
    ]
    assert [step.rows[0].num_outputs for step in steps] == [0, 0, 0, 1, 2]
    assert steps[2].rows[0].token_ids == tuple(1 + i % 999 for i in range(200, 250))
    assert scheduler.pool.num_used == 0


def test_every_decoding_request_is_in_every_step_and_comes_first():
    scheduler = scheduler_of()
    for i in range(10):
        scheduler.queue.add(request_of(f"chat-{i}", 8, 50))
    advance(scheduler, 100)
    scheduler.queue.add(request_of("prompt", 400, 5))
    for budget in (64, 11, 10, 3):
        ids = [row.request_id for row in advance(scheduler, budget).rows]
        assert ids[:10] == [f"chat-{i}" for i in range(10)]
        assert ids[10:] == (["prompt"] if budget > 10 else [])


def test_a_step_stays_within_its_budget():
    scheduler = scheduler_of()
    for i in range(40):
        scheduler.queue.add(request_of(str(i), 30 + 17 * i, 20))
    for budget in (200, 64, 333, 48, 512, 100):
        step = advance(scheduler, budget)
        assert step.num_tokens == sum(shares(step).values()) <= budget


def test_short_prompts_share_a_step():
    scheduler = scheduler_of()
    for i in range(12):
        scheduler.queue.add(request_of(str(i), 20, 5))
    assert shares(advance(scheduler, 256)) == {str(i): 20 for i in range(12)}


def test_a_short_prompt_advances_beside_a_huge_one():
    scheduler = scheduler_of(num_blocks=100_000)
    scheduler.queue.add(request_of("huge", 600_000, 5))
    advance(scheduler, 512)
    scheduler.queue.add(request_of("short", 128, 5))
    first, second = advance(scheduler, 512), advance(scheduler, 512)
    assert shares(first) == {"huge": 448, "short": 64}
    assert second.rows[-1].sampling is not None, "the short one is done after two steps"


def test_equal_prompts_finish_one_after_the_other():
    scheduler = scheduler_of()
    for name in ("first", "second", "third"):
        scheduler.queue.add(request_of(name, 600, 50))
    first_tokens = {}
    for number in range(10):
        for row in advance(scheduler, 256).rows:
            if row.sampling and row.num_outputs == 0:
                first_tokens[row.request_id] = number
    assert sorted(first_tokens, key=first_tokens.__getitem__) == ["first", "second", "third"]
    assert first_tokens["first"] <= 3, "sharing costs the first one little"


def test_few_prompts_are_left_unfinished_at_once():
    scheduler = scheduler_of(num_blocks=10_000)
    for i in range(20):
        scheduler.queue.add(request_of(str(i), 5000, 5))
    advance(scheduler, 2048)
    assert len(scheduler.running) == MAX_PARTIAL_PROMPTS


def test_requests_start_in_the_order_of_arrival():
    scheduler = scheduler_of(slots=1)
    for name in ("first", "second", "third"):
        scheduler.queue.add(request_of(name, 10, 1))
    assert [row.request_id for _ in range(3) for row in advance(scheduler, 512).rows] == ["first", "second", "third"]


def blocked_by_a_long_answer() -> Scheduler:
    """A request that runs for 99 steps more, and a big one that fits only when it has ended."""
    scheduler = scheduler_of(num_blocks=20)
    scheduler.queue.add(request_of("running", 100, 100))
    advance(scheduler, 512)
    scheduler.queue.add(request_of("big", 200, 100))
    return scheduler


def test_a_small_request_passes_a_blocked_one_that_starts_no_later_for_it():
    scheduler = blocked_by_a_long_answer()
    scheduler.queue.add(request_of("small", 5, 90))
    assert shares(advance(scheduler, 512)) == {"running": 1, "small": 5}
    while "running" in {request.request_id for request in scheduler.running}:
        advance(scheduler, 512)
    assert shares(advance(scheduler, 512)) == {"big": 200}


def test_a_request_that_would_still_be_in_the_way_does_not_pass():
    scheduler = blocked_by_a_long_answer()
    scheduler.queue.add(request_of("small", 20, 120))
    assert shares(advance(scheduler, 512)) == {"running": 1}
    scheduler.end("running", FinishReason.STOP)
    assert shares(advance(scheduler, 512)) == {"big": 200}


def test_a_blocked_request_starts_before_another_ends_as_soon_as_it_fits_beside_it():
    scheduler = scheduler_of(num_blocks=100)
    scheduler.queue.add(request_of("long", 320, 640))
    advance(scheduler, 512)
    scheduler.queue.add(request_of("next", 160, 800))
    num_steps = 0
    while len(scheduler.running) < 2:
        advance(scheduler, 512)
        num_steps += 1
    assert num_steps == 159, "not at once, and not only after 639 steps, when the long one ends"


def test_no_more_run_than_there_are_slots():
    scheduler = scheduler_of(slots=3)
    for i in range(5):
        scheduler.queue.add(request_of(str(i), 10, 2))
    assert list(shares(advance(scheduler, 512))) == ["0", "1", "2"]
    advance(scheduler, 512)
    assert list(shares(advance(scheduler, 512))) == ["3", "4"]


def test_a_request_that_ends_while_it_waits_leaves_no_trace():
    scheduler = scheduler_of()
    scheduler.queue.add(request_of("gone", 10, 2))
    ended = scheduler.end("gone", FinishReason.ABORT)
    assert ended
    assert ended.finish_reason is FinishReason.ABORT
    assert scheduler.schedule(512).rows == ()
    assert scheduler.end("gone", FinishReason.ABORT) is None


def test_what_is_reserved_counts_the_blocks_of_every_kv_group_and_goes_with_who_runs():
    pool = BlockPool(100, 16, (None, 32, 32))
    queue = RequestQueue()
    scheduler = Scheduler(pool, queue, slots=4)
    queue.add(request_of("a", 100, 10))
    scheduler.schedule(200)
    assert pool.num_used == 3 * 7
    assert scheduler.num_reserved_blocks == 3 * 7  # 109 positions, all of a prompt's while it is computed
    scheduler.end("a", FinishReason.ABORT)
    assert scheduler.num_reserved_blocks == 0
