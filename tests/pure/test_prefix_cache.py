"""The prefix cache: what its hashes tell apart, how long a hit is, and what engines make of it."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_talks import Talks
from scripted_engine import ScriptedRunner, collect, engine_of, request_of, run_until_idle
from tidegate_core.kv_demand import KvDemand
from tidegate_engine.prefix_chain import DIGEST_BYTES, SALT, TENANT, PrefixChain, hash_link
from tidegate_engine.request import Request, SamplingParams, new_request
from tidegate_engine.runner import NULL_BLOCK
from tidegate_engine.scheduling.admission import Claim, peak_blocks
from tidegate_engine.scheduling.blocks import BlockPool
from tidegate_engine.scheduling.prefix_cache import PrefixCache

BLOCK_SIZE = 4


def chain_of(token_ids, tenant="", salt=b"", **options) -> PrefixChain:
    chain = PrefixChain(tenant, salt, BLOCK_SIZE, **options)
    chain.extend(token_ids, len(token_ids) // BLOCK_SIZE)
    return chain


# hashes

names = st.text("ab", max_size=3)


@given(first=st.tuples(names, st.binary(max_size=2)), second=st.tuples(names, st.binary(max_size=2)))
def test_no_two_tenants_and_salts_have_a_hash_in_common(first, second):
    one, other = (chain_of(range(12), tenant, salt) for tenant, salt in (first, second))
    assert bool(set(one.digests) & set(other.digests)) == (first == second)
    assert (one.root == other.root) == (first == second)


def test_a_tenant_named_like_another_one_s_salt_is_a_stranger():
    """Kinds of values have tags of their own, and every value its length."""
    assert hash_link(bytes(DIGEST_BYTES), TENANT, b"x") != hash_link(bytes(DIGEST_BYTES), SALT, b"x")
    assert chain_of(range(8), tenant="x").digests[0] != chain_of(range(8), salt=b"x").digests[0]
    assert chain_of(range(8), tenant="ab", salt=b"c").root != chain_of(range(8), tenant="a", salt=b"bc").root


@given(st.lists(st.integers(0, 2**31), max_size=40), st.lists(st.integers(0, 10), max_size=10))
def test_a_chain_that_grew_is_the_chain_of_the_whole(token_ids, steps):
    grown = PrefixChain("t", b"s", BLOCK_SIZE)
    most = len(token_ids) // BLOCK_SIZE
    for num_blocks in (*sorted(min(step, most) for step in steps), most):
        grown.extend(token_ids, num_blocks)
    assert grown.digests == chain_of(token_ids, "t", b"s").digests
    assert len(set(grown.digests)) == most


def blind(parent: bytes, tag: bytes, value: bytes) -> bytes:
    return bytes(DIGEST_BYTES)


def test_an_equal_hash_of_other_tokens_is_no_hit():
    cache = PrefixCache((None,), BLOCK_SIZE, blind)
    stored, other = (chain_of(tokens, hash_=blind) for tokens in (range(4), range(50, 54)))
    cache.insert(stored, 0, (3,))
    cache.insert(other, 0, (5,))
    assert cache.longest_hit(stored, 1) == 1
    assert cache.longest_hit(other, 1) == 0
    assert list(cache.known) == [3]


# hits


def naive_hit(blocks: list[list[bool]], windows, most: int) -> int:
    """The longest beginning whose every token that the next one sees is there, counted token by token."""
    for num_blocks in range(most, 0, -1):
        end = num_blocks * BLOCK_SIZE
        seen = [range(0 if window is None else max(0, end - window + 1), end) for window in windows]
        if all(blocks[g][position // BLOCK_SIZE] for g, positions in enumerate(seen) for position in positions):
            return num_blocks
    return 0


@settings(deadline=None)
@given(
    st.lists(st.none() | st.integers(1, 20), min_size=1, max_size=3).map(tuple),
    st.integers(0, 10),
    st.integers(0, 10**9),
)
def test_a_hit_is_as_long_as_all_groups_can_serve(windows, most, seed):
    rng = random.Random(seed)
    cache, chain = PrefixCache(windows, BLOCK_SIZE), chain_of(range(40))
    is_there = [[rng.random() < 0.8 for _ in range(10)] for _ in windows]
    for number, there in enumerate(zip(*is_there, strict=True)):
        if any(there):
            blocks = [100 * group + number if is_one else NULL_BLOCK for group, is_one in enumerate(there)]
            cache.insert(chain, number, blocks)
    num_blocks = cache.longest_hit(chain, most)
    assert num_blocks == naive_hit(is_there, windows, most)
    for group, table in enumerate(cache.tables(chain, num_blocks)):
        kept = [number for number, block in enumerate(table) if block != NULL_BLOCK]
        assert [table[number] for number in kept] == [100 * group + number for number in kept]
        assert len(table) == num_blocks


def test_what_is_forgotten_leaves_nothing_behind():
    cache, chain = PrefixCache((None, 8), BLOCK_SIZE), chain_of(range(40))
    for number in range(10):
        cache.insert(chain, number, (2 * number, 2 * number + 1))
    assert len(cache) == 20
    for block in range(20):
        cache.forget((block,))
    assert (len(cache), len(cache._entries)) == (0, 0)


# admission


@settings(deadline=None)
@given(
    decoding=st.lists(st.builds(Claim, left=st.integers(1, 60), held=st.integers(0, 60)), max_size=6),
    windows=st.lists(st.none() | st.integers(1, 50), min_size=1, max_size=4).map(tuple),
    block_size=st.sampled_from([1, 3, 16]),
)
def test_the_peak_of_decoding_requests_with_windows_is_exact(decoding, windows, block_size):
    kv = KvDemand(windows, block_size, max_chunk=10)
    truth = max(
        sum(kv.decoding_blocks(held + step) for left, held in decoding if step <= left) for step in range(1, 62)
    )
    assert peak_blocks(decoding, [], kv) == truth
    for floor in (truth - 1, truth, truth + 1):
        assert peak_blocks(decoding, [], kv, at_least=floor) == max(truth, floor)


class AnyBeginnings(Talks):
    """Beginnings of any length in common, over groups with and without windows."""

    def __init__(self, rng: random.Random) -> None:
        windows = rng.choice([(None,), (None, 6, 6), (10,), (None, 17), (None, None, 9)])
        block_size = rng.choice([2, 4, 16])
        pool = BlockPool(rng.randint(12, 60), block_size, windows, 40, PrefixCache(windows, block_size))
        self.longest = pool.kv.longest_sequence(pool.num_blocks, 200)
        super().__init__(rng, pool, slots=rng.randint(1, 8), max_chunk=40)

    def new_request(self, name: str) -> Request:
        total = self.rng.randint(2, self.longest + 1)
        num_prompt = self.rng.randint(1, total - 1)
        beginning = [self.rng.randint(0, 1)] * self.rng.randint(0, num_prompt)
        prompt = (beginning + [self.rng.randint(0, 1) for _ in range(num_prompt)])[:num_prompt]
        return new_request(name, prompt, SamplingParams(total - num_prompt), 0.0)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**9))
def test_with_shared_beginnings_and_windows_nobody_runs_out_of_blocks(seed):
    rng = random.Random(seed)
    AnyBeginnings(rng).run(rng.randint(2, 14))  # OutOfBlocks would end it


def test_the_random_talks_do_hit():
    runs = [AnyBeginnings(random.Random(seed)) for seed in range(20)]
    for talks in runs:
        talks.run(14)
    assert sum(any(request.num_cached_tokens for request in talks.ended) for talks in runs) > 10


# engines


def cached(**options) -> ScriptedRunner:
    return ScriptedRunner(200, **options)


def chat(request_id: str, token_ids: list[int], max_tokens: int = 4, **sampling: object) -> Request:
    return new_request(request_id, token_ids, SamplingParams(max_tokens, **sampling), arrival_seconds=0.0)


PROMPT = [1 + i % 97 for i in range(100)]


def test_the_second_of_two_equal_prompts_computes_only_its_end_and_says_how_much_was_cached():
    runner = cached()
    engine = engine_of(runner, has_prefix_cache=True)
    engine.queue.add(chat("first", PROMPT))
    first = run_until_idle(engine)["first"]
    engine.queue.add(chat("second", PROMPT))
    output = engine.step()[0]
    assert runner.batches[-1][0].start == 96
    assert output.chunk.num_cached_tokens == 96
    assert list(output.chunk.token_ids) == first[0][:1]
    assert run_until_idle(engine)["second"][0] == first[0][1:]
    assert (engine.counters.prefix_queried_tokens, engine.counters.prefix_hit_tokens) == (200, 96)


def test_the_next_turn_of_a_chat_finds_the_answer_too():
    engine = engine_of(cached(), has_prefix_cache=True)
    engine.queue.add(chat("turn-1", PROMPT, 60))
    answer, _ = run_until_idle(engine)["turn-1"]
    engine.queue.add(chat("turn-2", [*PROMPT, *answer, 5, 6, 7]))
    assert engine.step()[0].chunk.num_cached_tokens == 144  # 159 tokens have keys and values: nine blocks


def test_without_a_prefix_cache_everything_is_computed():
    engine = engine_of(cached())
    for name in ("first", "second"):
        engine.queue.add(chat(name, PROMPT))
        run_until_idle(engine)
    assert (engine.counters.prefix_queried_tokens, engine.counters.prefix_hit_tokens) == (0, 0)
    assert engine.pool.num_cached == 0


def test_prompt_logprobs_are_computed_although_the_prompt_is_cached():
    runner = cached()
    engine = engine_of(runner, has_prefix_cache=True)
    engine.queue.add(chat("first", PROMPT))
    run_until_idle(engine)
    engine.queue.add(chat("scored", PROMPT, num_prompt_logprobs=0))
    engine.step()
    assert runner.batches[-1][0].start == 0


def test_a_waiting_request_uses_what_was_computed_while_it_waited():
    runner = cached()
    engine = engine_of(runner, slots=1, has_prefix_cache=True)
    for name in ("first", "second"):
        engine.queue.add(chat(name, PROMPT))
    run_until_idle(engine)
    assert [(row.request_id, row.start) for batch in runner.batches for row in batch if len(row.token_ids) > 1] == [
        ("first", 0),
        ("second", 96),
    ]


def test_cached_blocks_are_no_blocks_in_use():
    engine = engine_of(cached(), has_prefix_cache=True)
    engine.queue.add(chat("a", PROMPT))
    run_until_idle(engine)
    assert (engine.pool.num_used, engine.pool.num_free, engine.pool.num_cached) == (0, 200, 6)


def test_a_full_cache_makes_room_for_whoever_comes():
    engine = engine_of(ScriptedRunner(20), has_prefix_cache=True)
    for i in range(30):
        engine.queue.add(chat(str(i), [i] * 150, 20))
    answers: dict = {}
    while engine.has_work:
        collect(answers, engine.step())
        engine.pool.check(engine.scheduler.running)
    assert len(answers) == 30
    assert engine.pool.num_indexed <= 20


def test_a_forecast_counts_cached_tokens_as_computed():
    engine = engine_of(cached(), slots=1, has_prefix_cache=True)
    engine.queue.add(chat("first", PROMPT))
    run_until_idle(engine)
    waiting = request_of("x", 1, 1)
    waiting.token_ids[:] = PROMPT
    engine.pool.look_up(waiting)
    assert waiting.num_hit_tokens == 96


def test_a_new_engine_has_nothing_cached():
    for _ in range(2):
        engine = engine_of(cached(), has_prefix_cache=True)
        engine.queue.add(chat("first", PROMPT))
        assert engine.step()[0].chunk.num_cached_tokens == 0
        run_until_idle(engine)
        assert engine.pool.num_indexed == 6
