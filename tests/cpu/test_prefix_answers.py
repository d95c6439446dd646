"""Models behind the prefix cache: what was cached says the same as what is computed, also where layers have windows."""

import pytest

from running import answers, greedy_params
from tidegate_core.launch import EngineLaunch
from tidegate_engine.compute.torch_runner import TorchRunner
from tidegate_engine.counters import Counters
from tiny_models import greedy, save_tiny_model

BEGINNING = [(11 * i + 5) % 211 for i in range(70)]  # far longer than the windows of 16 and 24
PROMPTS = [
    BEGINNING,
    [*BEGINNING[:50], 9, 8, 7],
    BEGINNING,
    [*BEGINNING, 3, 1, 4, 1, 5, 9, 2, 6],
    [2] * 5 + BEGINNING,
    BEGINNING[:49],
]


@pytest.fixture(scope="module", params=["llama", "gemma3", "mistral_window"])
def model(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    reference = save_tiny_model(request.param, folder)
    launch = EngineLaunch(model=str(folder), kv_memory=2**21, context=256, threads=2)
    return TorchRunner.load(launch, folder), [greedy(reference, prompt, 30) for prompt in PROMPTS]


@pytest.mark.parametrize("slots", [1, 4])
def test_cached_beginnings_do_not_change_what_follows(model, slots):
    runner, expected = model
    counters = Counters()
    params = [greedy_params(30)] * len(PROMPTS)
    assert answers(runner, PROMPTS, params, slots=slots, has_prefix_cache=True, counters=counters) == expected
    assert counters.prefix_queried_tokens == sum(map(len, PROMPTS))
    assert counters.prefix_hit_tokens >= 16 * (3 + 4 + 4 + 3) * (slots == 1)


def test_a_pool_that_evicts_all_the_time_answers_the_same(model):
    runner, expected = model
    longest = max(map(len, PROMPTS)) + 30
    num_blocks = len(runner.kv_windows) * -(-longest // runner.block_size)
    kept, runner.num_blocks = runner.num_blocks, num_blocks
    try:
        params = [greedy_params(30)] * len(PROMPTS)
        assert answers(runner, PROMPTS * 2, params * 2, slots=3, has_prefix_cache=True) == expected * 2
    finally:
        runner.num_blocks = kept


def test_a_generated_answer_is_reused_by_the_next_turn(model):
    runner, expected = model
    turn = PROMPTS[0] + expected[0] + [8, 8, 8]
    params = [greedy_params(30), greedy_params(20)]
    counters = Counters()
    first, second = answers(runner, [PROMPTS[0], turn], params, slots=1, has_prefix_cache=True, counters=counters)
    (alone,) = answers(runner, [turn], params[1:])
    assert (first, second) == (expected[0], alone)
    assert counters.prefix_hit_tokens == 96
