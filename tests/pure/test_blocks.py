"""The block pool under random growth, sharing, eviction and release: every block has one place, and nothing is lost."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scripted_engine import request_of
from tidegate_engine.errors import OutOfBlocks
from tidegate_engine.request import Request, SamplingParams, Terms, new_request
from tidegate_engine.runner import NULL_BLOCK
from tidegate_engine.scheduling.blocks import BlockPool
from tidegate_engine.scheduling.prefix_cache import PrefixCache

BLOCK_SIZE = 4
NUM_BLOCKS = 24
WINDOWS = [(None,), (None, 6, 6), (5,), (None, None, 9)]


def pool_of(windows=(None,), num_blocks=NUM_BLOCKS, *, has_prefix_cache=True) -> BlockPool:
    prefixes = PrefixCache(windows, BLOCK_SIZE) if has_prefix_cache else None
    return BlockPool(num_blocks, BLOCK_SIZE, windows, max_chunk=8, prefixes=prefixes)


def sequence(token_ids, *, tenant="", salt=b"", **sampling) -> Request:
    return new_request(
        "r", list(token_ids), SamplingParams(8, **sampling), arrival_seconds=0.0, terms=Terms(tenant, cache_salt=salt)
    )


def advance(pool: BlockPool, request: Request, num_tokens: int) -> None:
    """What a step does: tables first, then the tokens are computed, full blocks become known."""
    start = request.num_computed_tokens
    pool.grow(request, start + num_tokens, start)
    request.num_computed_tokens += num_tokens
    pool.keep(request)


def compute(pool: BlockPool, request: Request) -> Request:
    pool.reuse(request)
    while request.num_computed_tokens < request.num_tokens:
        advance(pool, request, min(8, request.num_tokens - request.num_computed_tokens))
    return request


class Interleaving:
    """Random steps of many requests over few different prompts, against contents written down for every block."""

    def __init__(self, rng: random.Random, windows) -> None:
        self.rng = rng
        self.windows = windows
        self.pool = pool_of(windows)
        self.live: list[Request] = []
        self.written: dict[tuple[int, int], tuple] = {}  # (block, offset) -> group and tokens up to there

    def arrive(self) -> None:
        tokens = [self.rng.randint(0, 1) for _ in range(self.rng.randint(1, 5))]  # 5 blocks that look alike often
        tokens = [t for t in tokens for _ in range(BLOCK_SIZE)][: self.rng.randint(1, 20)]
        request = sequence(tokens, tenant=self.rng.choice(["", "a"]))
        if self.rng.random() < 0.5:
            self.pool.look_up(request)
        self.pool.reuse(request)
        assert request.num_computed_tokens < request.num_tokens
        self.live.append(request)

    def step(self, request: Request) -> None:
        if request.num_computed_tokens == request.num_tokens:
            request.token_ids.append(self.rng.randint(0, 1))
        start = request.num_computed_tokens
        end = min(request.num_tokens, start + self.rng.randint(1, 8))
        try:
            self.pool.grow(request, end, start)
        except OutOfBlocks:
            self.end(request)
            return
        for group in range(len(self.windows)):
            for position in range(start, end):
                self.written[self.slot(request, group, position)] = self.content(request, group, position)
            self.check_visible(request, group, start, end)
        request.num_computed_tokens = end
        self.pool.keep(request)

    def slot(self, request: Request, group: int, position: int) -> tuple[int, int]:
        block = request.block_tables[group][position // BLOCK_SIZE]
        assert block != NULL_BLOCK
        return block, position % BLOCK_SIZE

    @staticmethod
    def content(request: Request, group: int, position: int) -> tuple:
        return request.terms.tenant, group, tuple(request.token_ids[: position + 1])

    def check_visible(self, request: Request, group: int, start: int, end: int) -> None:
        """All that the tokens see is what this very sequence would have written."""
        window = self.windows[group]
        for position in range(0 if window is None else max(0, start - window + 1), end):
            assert self.written[self.slot(request, group, position)] == self.content(request, group, position)

    def end(self, request: Request) -> None:
        self.live.remove(request)
        self.pool.release(request)
        self.pool.release(request)

    def run(self) -> None:
        for _ in range(120):
            choice = self.rng.random()
            if not self.live or choice < 0.15:
                self.arrive()
            elif choice < 0.25:
                self.end(self.rng.choice(self.live))
            elif choice < 0.3:
                preempted = self.rng.choice(self.live)
                self.pool.put_back(preempted)
                self.pool.reuse(preempted)
            else:
                self.step(self.rng.choice(self.live))
            self.pool.check(self.live)
            assert self.pool.num_free + self.pool.num_used == NUM_BLOCKS
            assert self.pool.num_indexed <= NUM_BLOCKS


@pytest.mark.parametrize("windows", WINDOWS)
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**9))
def test_whatever_the_order_blocks_have_one_place_and_hits_hold_what_was_computed(windows, seed):
    Interleaving(random.Random(seed), windows).run()


def test_tables_grow_and_what_does_not_fit_changes_nothing():
    pool = pool_of(has_prefix_cache=False)
    first, second = request_of("a", 1, 1), request_of("b", 1, 1)
    pool.grow(first, 70)
    before = first.block_tables
    pool.grow(first, 71)
    assert first.block_tables == before
    with pytest.raises(OutOfBlocks, match="7 KV blocks wanted, 6 of 24 are free"):
        pool.grow(second, 28)
    with pytest.raises(OutOfBlocks, match="7 KV blocks wanted, 6 of 24 are free"):
        pool.grow_by_block([request_of(str(number), 1, 1) for number in range(7)], [1] * 7)
    assert (pool.num_used, pool.num_free) == (18, 6)
    pool.grow(first, 73)
    assert first.block_tables[0][:18] == before[0]
    pool.check([first, second])


def test_a_leaked_block_is_noticed():
    pool = pool_of()
    pool.grow(request_of("lost", 1, 1), 5)
    with pytest.raises(AssertionError, match="in 0 tables, not in 1"):
        pool.check([])


def test_a_block_with_two_owners_is_noticed():
    pool = pool_of()
    first, second = request_of("a", 1, 1), request_of("b", 1, 1)
    pool.grow(first, 5)
    second.block_tables = first.block_tables
    with pytest.raises(AssertionError, match="in 2 tables, not in 1"):
        pool.check([first, second])


def test_a_block_freed_twice_is_noticed():
    pool = pool_of()
    first, second = request_of("a", 1, 1), request_of("b", 1, 1)
    pool.grow(first, 5)
    second.block_tables = first.block_tables
    pool.release(first)
    with pytest.raises(AssertionError, match="free already"):
        pool.release(second)


def test_a_running_request_gives_up_what_its_window_has_left_behind():
    pool = pool_of((None, 6), has_prefix_cache=False)
    request = sequence(range(40))
    compute(pool, request)
    full, window = request.block_tables
    assert NULL_BLOCK not in full
    assert [block == NULL_BLOCK for block in window] == [True] * 6 + [False] * 4  # a chunk of 8 sees 5 before it
    pool.leave_behind(request, 39)
    assert [block == NULL_BLOCK for block in request.block_tables[1]] == [True] * 8 + [False] * 2
    assert pool.num_used == 12
    pool.check([request])


# the prefix cache


def test_a_prompt_that_ended_is_hit_but_for_its_last_token():
    pool = pool_of()
    pool.release(compute(pool, sequence(range(20))))
    assert (pool.num_used, pool.num_cached, pool.num_free) == (0, 5, 24)
    again = sequence(range(20))
    pool.look_up(again)
    assert again.num_hit_tokens == 16
    pool.reuse(again)
    assert (again.num_computed_tokens, again.num_hit_tokens, pool.num_used) == (16, 0, 4)
    longer = sequence([*range(20), 7])
    pool.reuse(longer)
    assert longer.num_computed_tokens == 20
    assert longer.block_tables[0][:4] == again.block_tables[0], "shared with one that runs"
    pool.check([again, longer])


def test_an_answer_is_hit_by_the_next_turn_of_the_chat():
    pool = pool_of()
    chat = compute(pool, sequence(range(10)))
    for token in range(7):
        chat.token_ids.append(50 + token)
        advance(pool, chat, 1)
    pool.release(chat)
    turn = sequence([*chat.token_ids, 1, 2, 3])
    pool.reuse(turn)
    assert turn.num_computed_tokens == 16


def test_half_a_block_is_not_shared():
    pool = pool_of()
    compute(pool, sequence(range(7)))
    other = sequence([*range(7), 9])
    pool.reuse(other)
    assert other.num_computed_tokens == 4


@pytest.mark.parametrize("other", [{"tenant": "b"}, {"salt": b"x"}, {"tenant": "ax", "salt": b""}])
def test_requests_of_another_tenant_or_salt_share_nothing(other):
    pool = pool_of()
    compute(pool, sequence(range(20), tenant="a"))
    stranger = sequence(range(20), **{"tenant": "a", **other})
    pool.reuse(stranger)
    assert stranger.num_computed_tokens == 0


def test_prompt_logprobs_need_every_token_computed_and_still_serve_others():
    pool = pool_of()
    pool.release(compute(pool, sequence(range(20))))
    scored = compute(pool, sequence(range(20), num_prompt_logprobs=1))
    assert scored.num_hit_tokens == 0
    pool.look_up(scored)
    assert scored.num_hit_tokens == 0
    assert pool.num_used == 5
    assert pool.num_cached == 5


def test_blocks_are_taken_from_the_end_of_what_was_used_longest_ago():
    pool = pool_of(num_blocks=8)
    pool.release(compute(pool, sequence(range(16))))
    pool.release(compute(pool, sequence(range(100, 116))))
    big = sequence(range(200, 208))
    pool.grow(big, 8)
    old, young = sequence(range(17)), sequence(range(100, 117))
    pool.look_up(old)
    pool.look_up(young)
    assert (old.num_hit_tokens, young.num_hit_tokens) == (8, 16)


def test_what_is_used_again_is_kept_longest():
    pool = pool_of(num_blocks=8)
    pool.release(compute(pool, sequence(range(16))))
    pool.release(compute(pool, sequence(range(100, 116))))
    pool.release(compute(pool, sequence(range(16))))
    pool.grow(sequence(range(16)), 16)
    old, young = sequence(range(17)), sequence(range(100, 117))
    pool.look_up(old)
    pool.look_up(young)
    assert (old.num_hit_tokens, young.num_hit_tokens) == (16, 0)


def test_a_group_with_a_window_needs_only_its_last_blocks():
    pool = pool_of((None, 6), num_blocks=40)
    compute(pool, sequence(range(32)))
    again = sequence(range(33))
    pool.reuse(again)
    assert again.num_computed_tokens == 32
    full, window = again.block_tables
    assert NULL_BLOCK not in full
    assert [block == NULL_BLOCK for block in window] == [True] * 6 + [False] * 2


def test_a_window_that_was_left_behind_and_overwritten_makes_the_hit_shorter_or_none():
    pool = pool_of((None, 6), num_blocks=24)
    first = compute(pool, sequence(range(32)))
    pool.leave_behind(first, 31)
    taker = request_of("taker", 1, 1)
    pool.grow(taker, 4 * ((pool.num_free - pool.num_free % 2) // 2))
    half = sequence([*range(16), 99])
    pool.reuse(half)
    assert half.num_computed_tokens == 0, "the full blocks are there, the window's are not"
    whole = sequence(range(33))
    pool.reuse(whole)
    assert whole.num_computed_tokens == 32
    pool.check([first, taker, half, whole])
