"""Every family in fp32 against transformers, token for token, through the real scheduler."""

import random

import pytest
import torch

from running import answers, greedy_params
from tidegate_checkpoint.config_json import SERVED
from tidegate_checkpoint.errors import UnsupportedCheckpoint
from tidegate_core.launch import EngineLaunch
from tidegate_engine.compute.rope import inverse_frequencies
from tidegate_engine.compute.torch_runner import TorchRunner
from tidegate_engine.models.registry import MODELS, load_model
from tiny_models import CONFIGS, greedy, save_tiny_model

NUM_TOKENS = 24
PROMPT_LENGTHS = (1, 5, 70, 33, 100, 16)  # shorter and longer than blocks, windows and chunks


def prompts_of(vocab_size: int) -> list[list[int]]:
    chooser = random.Random(5)
    return [[chooser.randrange(vocab_size) for _ in range(length)] for length in PROMPT_LENGTHS]


def load(folder, **settings) -> TorchRunner:
    launch = EngineLaunch(model=str(folder), kv_memory=2**21, context=256, threads=2, **settings)
    return TorchRunner.load(launch, folder)


@pytest.fixture(scope="module", params=CONFIGS)
def family(request, tmp_path_factory):
    """The runner of a family, prompts, and what transformers answers."""
    folder = tmp_path_factory.mktemp(request.param)
    model = save_tiny_model(request.param, folder)
    prompts = prompts_of(model.config.vocab_size)
    return load(folder), prompts, [greedy(model, prompt, NUM_TOKENS) for prompt in prompts]


def test_alone_it_answers_as_transformers_does(family):
    runner, prompts, expected = family
    params = [greedy_params(NUM_TOKENS)]
    assert [answers(runner, [prompt], params)[0] for prompt in prompts] == expected


def test_chunks_and_neighbours_change_no_answer(family):
    runner, prompts, expected = family
    params = [greedy_params(NUM_TOKENS)] * len(prompts)
    assert answers(runner, prompts, params, max_step_tokens=40) == expected


def test_answers_vary_so_that_equality_means_something(family):
    _, _, expected = family
    assert len({tuple(answer) for answer in expected}) == len(expected)
    assert len({token for answer in expected for token in answer}) > NUM_TOKENS // 2


@pytest.mark.parametrize("name", ["qwen2_bias", "gemma3"])
def test_a_16_bit_checkpoint_gives_nearly_the_logits_of_transformers(name, tmp_path):
    """fp16 weights and cache with fp32 sums: closer to the exact logits than bf16 arithmetic would be."""
    model = save_tiny_model(name, tmp_path, torch.bfloat16).float()
    runner = load(tmp_path)
    prompt = prompts_of(211)[2]
    with torch.inference_mode():
        expected = model(torch.tensor([prompt])).logits[0, -1]
    assert torch.corrcoef(torch.stack((expected, last_logits(runner, prompt))))[0, 1] > 0.9999


def last_logits(runner: TorchRunner, prompt: list[int]) -> torch.Tensor:
    from tidegate_engine.runner import ScheduledRow

    count = -(-len(prompt) // runner.block_size)
    tables = tuple(tuple(range(group * count, (group + 1) * count)) for group in range(len(runner.kv_windows)))
    row = ScheduledRow("logits", tuple(prompt), 0, tables, greedy_params(1), 0)
    with torch.inference_mode():
        return runner._computing.logits(runner._computing.hidden((row,))[-1:])[0]


def test_the_registry_runs_exactly_what_the_checkpoint_package_says_is_served():
    assert tuple(MODELS) == SERVED


def test_an_architecture_that_can_only_be_sized_is_refused_by_name():
    with pytest.raises(UnsupportedCheckpoint, match="deepseek_v3"):
        load_model({"model_type": "deepseek_v3"}, None, torch.device("cpu"))


def test_an_unknown_rotary_scaling_is_refused_by_name():
    with pytest.raises(UnsupportedCheckpoint, match="longrope"):
        inverse_frequencies(64, 10_000.0, {"rope_type": "longrope", "factor": 2.0})
