"""Two devices answer as transformers does, and a request that fails between their products fails alone.

One other process serves all models here, one after the other: gloo on this machine's loopback.
"""

import random

import pytest
import torch

from running import answer_chunks, answers, greedy_params
from tidegate_core.launch import EngineLaunch
from tidegate_core.storage import Quantization
from tidegate_engine.compute.torch_runner import TorchRunner
from tidegate_engine.errors import EngineFailed
from tidegate_engine.parallel.crew import Crew, FollowerLost
from tidegate_engine.parallel.group import leave
from tidegate_engine.request import FinishReason
from tidegate_engine.runner import ScheduledRow, StepBatch
from tiny_models import CONFIGS, greedy, save_tiny_model

NUM_TOKENS = 12
PROMPT_LENGTHS = (1, 33, 100, 16)


@pytest.fixture(scope="module")
def crew():
    crew = Crew(2)
    yield crew
    leave()
    crew.close()


def load(folder, crew, **settings) -> TorchRunner:
    launch = EngineLaunch(
        model=str(folder), kv_memory=2**21, context=256, threads=2, tensor_parallel=crew.size, **settings
    )
    return TorchRunner.load(launch, folder, crew=crew)


def prompts_of(vocab_size: int) -> list[list[int]]:
    chooser = random.Random(5)
    return [[chooser.randrange(vocab_size) for _ in range(length)] for length in PROMPT_LENGTHS]


FAMILIES = [(name, {}) for name in CONFIGS] + [("qwen2_bias", {"num_key_value_heads": 1})]  # one head on both devices


@pytest.mark.parametrize(("name", "changes"), FAMILIES, ids=str)
def test_two_devices_answer_as_transformers_does(name, changes, crew, tmp_path):
    model = save_tiny_model(name, tmp_path, **changes)
    prompts = prompts_of(model.config.vocab_size)
    runner = load(tmp_path, crew)
    params = [greedy_params(NUM_TOKENS)] * len(prompts)
    expected = [greedy(model, prompt, NUM_TOKENS) for prompt in prompts]
    assert answers(runner, prompts, params, max_step_tokens=40, has_prefix_cache=True) == expected


def test_weights_of_8_bits_give_nearly_the_logits_of_transformers(crew, tmp_path):
    model = save_tiny_model("gemma3", tmp_path, torch.bfloat16).float()
    runner = load(tmp_path, crew, quantization=Quantization.INT8)
    prompt = prompts_of(211)[2]
    with torch.inference_mode():
        expected = model(torch.tensor([prompt])).logits[0, -1]
        num_blocks = -(-len(prompt) // runner.block_size)
        tables = (tuple(range(num_blocks)), tuple(range(num_blocks, 2 * num_blocks)))
        row = ScheduledRow("logits", tuple(prompt), 0, tables, greedy_params(1), 0)
        logits = runner._computing.logits(runner._computing.hidden((row,))[-1:])[0]
    assert torch.corrcoef(torch.stack((expected, logits)))[0, 1] > 0.99


@pytest.fixture(scope="module")
def served(crew, tmp_path_factory):
    """A runner, prompts, and what it answers undisturbed."""
    folder = tmp_path_factory.mktemp("served")
    save_tiny_model("llama", folder)
    runner, prompts = load(folder, crew), prompts_of(211)
    return runner, prompts, answers(runner, prompts, [greedy_params(NUM_TOKENS)] * len(prompts))


class BrokenGrammar:
    """Fails where the first device samples, after both have computed the step."""

    is_finished = False
    failure = None

    def mask(self) -> bytes:
        raise RuntimeError("a bug in the grammar")


def test_a_request_that_fails_where_tokens_are_drawn_fails_alone(served):
    runner, prompts, expected = served
    params = [greedy_params(NUM_TOKENS)] * len(prompts)
    chunks = answer_chunks(runner, prompts, params, constraints=[None, BrokenGrammar(), None, None])
    assert chunks[1].finish_reason is FinishReason.ERROR
    others = [0, 2, 3]
    assert [list(chunks[index].token_ids) for index in others] == [expected[index] for index in others]


@pytest.mark.parametrize("token_id", [211, -1])
def test_a_token_outside_the_vocabulary_is_refused_before_anybody_computes_with_it(served, token_id):
    runner, prompts, expected = served
    with pytest.raises(IndexError, match="vocabulary of 211"):
        runner.run(StepBatch((ScheduledRow("bad", (token_id,), 0, ((0,),), greedy_params(1), 0),)))
    assert answers(runner, prompts[:1], [greedy_params(NUM_TOKENS)]) == expected[:1]


def test_a_device_that_fails_says_with_what_and_nothing_is_computed_any_more(served, crew):
    """The last test of this file: a crew that has lost one is of no use."""
    runner, prompts, _ = served
    crew.send("nonsense")
    with pytest.raises(FollowerLost, match=r"rank 1 of 2 failed.* TypeError: no command: 'nonsense'"):
        crew.receive()
    with pytest.raises(EngineFailed, match="no command"):
        answers(runner, prompts, [greedy_params(1)] * len(prompts))
