"""The same on two GPUs over NCCL: what a small model answers there equals what transformers answers on CPU."""

import pytest
import torch

from running import answers, greedy_params
from tidegate_core.launch import Device, EngineLaunch
from tidegate_engine.compute.torch_runner import TorchRunner
from tidegate_engine.parallel.crew import Crew
from tidegate_engine.parallel.group import leave
from tiny_models import CONFIGS, greedy, save_tiny_model

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")

NUM_TOKENS = 16
PROMPTS = [[(7 * place + length) % 211 for place in range(length)] for length in (3, 70, 33)]


@pytest.fixture(scope="module")
def crew():
    crew = Crew(2)
    yield crew
    leave()
    crew.close()


@pytest.mark.parametrize("name", CONFIGS)
def test_in_fp32_two_gpus_answer_as_transformers_does_on_cpu(name, crew, tmp_path):
    model = save_tiny_model(name, tmp_path)
    expected = [greedy(model, prompt, NUM_TOKENS) for prompt in PROMPTS]
    launch = EngineLaunch(
        model=str(tmp_path), device=Device.CUDA, kv_memory=2**22, context=256, tensor_parallel=crew.size
    )
    runner = TorchRunner.load(launch, tmp_path, crew=crew)
    params = [greedy_params(NUM_TOKENS)] * len(PROMPTS)
    assert answers(runner, PROMPTS, params, max_step_tokens=40) == expected


def test_each_gpu_keeps_half_of_the_weights_and_as_many_blocks_as_the_tighter_one_has_room_for(crew, tmp_path):
    save_tiny_model("llama", tmp_path, torch.bfloat16)
    launch = EngineLaunch(model=str(tmp_path), device=Device.CUDA, context=256, tensor_parallel=crew.size)
    runner = TorchRunner.load(launch, tmp_path, crew=crew)
    totals = [torch.cuda.mem_get_info(device)[1] for device in (0, 1)]
    assert runner.cache.num_bytes == runner.plan.pool_bytes
    assert 0.6 * min(totals) < runner.cache.num_bytes < min(totals)
