"""Two devices answer as one does, which is as transformers does; what fails in between ends as it should.

One other process serves all models here, over and over: gloo on this machine's loopback.
"""

import random

import pytest

from running import answers, greedy_params
from tidegate_core.launch import EngineLaunch
from tidegate_engine.compute.torch_runner import TorchRunner
from tidegate_engine.parallel.crew import Crew
from tidegate_engine.parallel.group import leave
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


@pytest.mark.parametrize("name", CONFIGS)
def test_two_devices_answer_as_transformers_does(name, crew, tmp_path):
    model = save_tiny_model(name, tmp_path)
    prompts = prompts_of(211)
    runner = load(tmp_path, crew)
    params = [greedy_params(NUM_TOKENS)] * len(prompts)
    expected = [greedy(model, prompt, NUM_TOKENS) for prompt in prompts]
    assert answers(runner, prompts, params, max_step_tokens=40) == expected
