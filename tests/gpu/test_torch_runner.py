"""The same runner and models on CUDA: what a small model answers there equals what transformers answers on CPU."""

import pytest
import torch

from running import answers, greedy_params
from tidegate_core.launch import AttentionKind, Device, EngineLaunch, KvDtype
from tidegate_core.memory import STEP_TOKENS
from tidegate_engine.compute.kv_dtype import FP8_CAPABILITY
from tidegate_engine.compute.torch_runner import TorchRunner
from tidegate_engine.runner import RowOutput, ScheduledRow, StepBatch
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
    assert runner.cache.num_bytes == runner.plan.pool_bytes


@pytest.mark.parametrize("kv_dtype", [KvDtype.AUTO, KvDtype.INT8, KvDtype.FP8])
def test_a_full_step_finds_room_beside_a_pool_that_took_what_was_left(kv_dtype, tmp_path):
    if kv_dtype is KvDtype.FP8 and torch.cuda.get_device_capability() < FP8_CAPABILITY:
        pytest.skip("needs compute capability 8.9")
    save_tiny_model("llama", tmp_path, torch.bfloat16)
    launch = EngineLaunch(model=str(tmp_path), device=Device.CUDA, context=256, kv_dtype=kv_dtype)
    runner = TorchRunner.load(launch, tmp_path)
    assert runner.cache.num_bytes == runner.plan.pool_bytes
    num_blocks = 256 // runner.block_size
    rows = tuple(
        ScheduledRow(str(i), (1,) * 256, 0, (tuple(range(i * num_blocks, (i + 1) * num_blocks)),), greedy_params(1), 0)
        for i in range(STEP_TOKENS // 256)
    )
    results = runner.run(StepBatch(rows))
    assert all(isinstance(result, RowOutput) and result.token_id is not None for result in results)
