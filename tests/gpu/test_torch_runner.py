"""The same runner and models on CUDA: what a small model answers there equals what transformers answers on CPU."""

import pytest
import torch

from running import answers, greedy_params
from tidegate_core.launch import AttentionKind, Device, EngineLaunch
from tidegate_engine.compute.torch_runner import TorchRunner
from tiny_models import CONFIGS, greedy, save_tiny_model

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

NUM_TOKENS = 16
PROMPTS = [[(7 * place + length) % 211 for place in range(length)] for length in (3, 70, 33)]


@pytest.mark.parametrize("attention", [AttentionKind.REFERENCE, AttentionKind.TRITON])
@pytest.mark.parametrize("name", CONFIGS)
def test_in_fp32_it_answers_as_transformers_does_on_cpu(name, attention, tmp_path):
    model = save_tiny_model(name, tmp_path)
    expected = [greedy(model, prompt, NUM_TOKENS) for prompt in PROMPTS]
    launch = EngineLaunch(model=str(tmp_path), device=Device.CUDA, attention=attention, kv_memory=2**22, context=256)
    runner = TorchRunner.load(launch, tmp_path)
    params = [greedy_params(NUM_TOKENS)] * len(PROMPTS)
    assert answers(runner, PROMPTS, params, max_step_tokens=40) == expected


def test_the_kv_pool_takes_what_the_card_has_left(tmp_path):
    save_tiny_model("llama", tmp_path, torch.bfloat16)
    runner = TorchRunner.load(EngineLaunch(model=str(tmp_path), device=Device.CUDA, context=256), tmp_path)
    free_bytes, total_bytes = torch.cuda.mem_get_info()
    assert 0.7 * total_bytes < runner.cache.num_bytes < total_bytes - free_bytes
