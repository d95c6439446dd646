"""The runner around a model: what it samples, what it allocates, what it refuses."""

import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
import transformers

from running import answers, greedy_params
from tidegate_core.accelerator import Device
from tidegate_core.errors import BadLaunch
from tidegate_core.launch import EngineLaunch
from tidegate_core.memory import LOGITS_ROWS, overhead_of
from tidegate_core.storage import KvDtype
from tidegate_engine.attention import reference
from tidegate_engine.compute import torch_loading
from tidegate_engine.compute.kv_dtype import check_kv_dtype
from tidegate_engine.compute.shard import Shard
from tidegate_engine.compute.torch_loading import LoadedModel
from tidegate_engine.compute.torch_runner import TorchRunner
from tidegate_engine.process.exits import DoesNotFit
from tidegate_engine.request import SamplingParams
from tidegate_engine.runner import ScheduledRow, StepBatch
from tiny_models import greedy, save_tiny_model

PROMPTS = [[5, 9, 1], [7] * 40, [3, 100, 42, 8, 15, 16, 23]]
KV_BYTES = 2**21


def load(folder, *, kv_memory=KV_BYTES, context=256, kv_dtype=KvDtype.AUTO) -> TorchRunner:
    launch = EngineLaunch(model=str(folder), kv_memory=kv_memory, context=context, threads=2, kv_dtype=kv_dtype)
    return TorchRunner.load(launch, folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    save_tiny_model("llama", folder)
    return folder


@pytest.fixture(scope="module")
def runner(folder):
    return load(folder)


def row(request_id="a", tokens=(1, 2, 3), sampling=None, *, start=0, num_outputs=0) -> ScheduledRow:
    return ScheduledRow(request_id, tuple(tokens), start, ((0, 1, 2),), sampling, num_outputs)


def drawn(num_tokens=20, **options) -> SamplingParams:
    return SamplingParams(max_tokens=num_tokens, **options)


def test_a_seed_gives_the_same_answer_in_any_batch(runner):
    params = [drawn(seed=seed, temperature=1.5, top_p=0.9) for seed in (1, 2, 3)]
    together = answers(runner, PROMPTS, params, max_step_tokens=40)
    alone = [answers(runner, [prompt], [own])[0] for prompt, own in zip(PROMPTS, params, strict=True)]
    assert together == alone


def test_other_seeds_give_other_answers(runner):
    params = [drawn(seed=seed, temperature=1.5) for seed in range(4)]
    assert len({tuple(answer) for answer in answers(runner, [PROMPTS[0]] * 4, params)}) == 4


def penalised(logits: torch.Tensor, prompt: list[int], output: list[int], sampling: SamplingParams) -> torch.Tensor:
    """As OpenAI and vLLM define it, token by token."""
    for token_id in {*prompt, *output}:
        logits[token_id] *= sampling.repetition_penalty ** (-1 if logits[token_id] > 0 else 1)
    for token_id in set(output):
        logits[token_id] -= sampling.presence_penalty + sampling.frequency_penalty * output.count(token_id)
    return logits


@pytest.mark.parametrize("name", ["presence_penalty", "frequency_penalty", "repetition_penalty"])
def test_each_token_is_penalised_by_all_before_it_and_neighbours_are_not(name, runner, folder):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    asked = drawn(temperature=0.0, **{name: 1.5})
    expected: list[int] = []
    while len(expected) < 20:
        with torch.no_grad():
            logits = model(torch.tensor([PROMPTS[0] + expected])).logits[0, -1]
        expected.append(int(penalised(logits, PROMPTS[0], expected, asked).argmax()))
    bent, plain = answers(runner, [PROMPTS[0]] * 2, [asked, greedy_params(20)])
    assert bent == expected
    assert plain == greedy(model, PROMPTS[0], 20) != bent


def test_requests_without_a_seed_differ_but_a_repeated_step_does_not(runner):
    hot = SamplingParams(max_tokens=1, temperature=5.0)
    repeated = {runner.run(StepBatch((row("a", sampling=hot),))) for _ in range(3)}
    assert len(repeated) == 1
    others = {runner.run(StepBatch((row(f"request-{index}", sampling=hot),))) for index in range(20)}
    assert len(others) > 5


def test_rows_in_the_middle_of_a_prompt_sample_nothing(runner):
    greedy = greedy_params(1)
    rows = (row("decode", (4,), greedy), ScheduledRow("chunk", (1, 2), 0, ((5,),), None, 0))
    first, second = runner.run(StepBatch(rows))
    assert isinstance(first.token_id, int)
    assert second is None
    assert runner.run(StepBatch(rows[1:])) == (None,)


def test_more_sampled_rows_than_logits_are_kept_at_once_are_all_answered(runner):
    rows = [ScheduledRow(str(i), (i,), 0, ((i,),), greedy_params(1), 0) for i in range(100)]
    together = runner.run(StepBatch(tuple(rows)))
    assert [runner.run(StepBatch((single,)))[0] for single in rows[::9]] == list(together[::9])


@dataclass
class NotingModel:
    """The model's logits, of hidden states that are all alike; notes how much it was asked for."""

    loaded: LoadedModel
    num_tokens: list[int] = field(default_factory=list)
    num_logits_rows: list[int] = field(default_factory=list)

    def hidden(self, token_ids: torch.Tensor, *_: object) -> torch.Tensor:
        self.num_tokens.append(len(token_ids))
        return torch.zeros(len(token_ids), 64)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        self.num_logits_rows.append(len(hidden))
        return self.loaded.model.logits(hidden)


@pytest.fixture
def noting(folder) -> tuple[TorchRunner, NotingModel]:
    launch = EngineLaunch(model=str(folder), kv_memory=KV_BYTES, context=256, threads=2)
    loaded = torch_loading.load(launch, folder)
    plan = torch_loading.plan_pool(launch, loaded)
    cache = loaded.kv_layout.allocate(plan.num_blocks, loaded.device)
    model = NotingModel(loaded)
    shard = Shard(replace(loaded, model=model), cache, reference.attend)
    return TorchRunner(loaded, plan, shard, b"entropy"), model


def test_no_more_rows_of_logits_are_sampled_from_at_once_than_the_plan_has_memory_for(noting):
    runner, model = noting
    runner.run(StepBatch(tuple(ScheduledRow(str(i), (i,), 0, ((i,),), greedy_params(1), 0) for i in range(150))))
    assert (sum(model.num_logits_rows), max(model.num_logits_rows)) == (150, LOGITS_ROWS[Device.CPU])
    planned = overhead_of(model.loaded.shape, model.loaded.target).logits
    assert planned >= max(model.num_logits_rows) * runner.vocab_size * torch.float32.itemsize


def test_a_loaded_engine_is_warm_after_a_prompt_of_two_blocks_and_a_token(noting):
    runner, model = noting
    runner.warm_up()
    assert model.num_tokens == [2 * runner.block_size, 1]


def test_a_token_outside_the_vocabulary_fails_its_step_and_no_other(runner):
    with pytest.raises(IndexError):
        runner.run(StepBatch((row(tokens=(runner.vocab_size,), sampling=greedy_params(1)),)))
    assert runner.run(StepBatch((row(sampling=greedy_params(1)),)))[0] is not None


def test_kv_memory_is_spent_on_blocks_and_not_exceeded(runner):
    block_bytes = 2 * 2 * 16 * 2 * 16 * 4  # layers x (keys, values) x tokens x heads x head size x fp32
    assert runner.num_blocks == KV_BYTES // block_bytes
    assert runner.cache.num_bytes == runner.plan.pool_bytes == runner.num_blocks * block_bytes


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there")
def test_a_gpu_that_is_not_there_is_told_before_anything_is_loaded(tmp_path):
    launch = EngineLaunch(model=str(tmp_path), device=Device.CUDA)
    with pytest.raises(BadLaunch, match="no NVIDIA GPU is visible"):
        TorchRunner.load(launch, tmp_path)


def test_a_context_that_does_not_fit_is_refused_with_the_numbers(folder):
    with pytest.raises(DoesNotFit, match=r"16 KiB .* 32 tokens.*raise --kv-memory"):
        load(folder, kv_memory=2**14)


def test_kv_memory_beyond_the_machine_is_refused_before_it_is_touched(folder):
    with pytest.raises(DoesNotFit, match=r"--kv-memory 1024 TiB .* exceed the"):
        load(folder, kv_memory=2**50)


def test_memory_that_loading_alone_would_exceed_is_refused_with_both_numbers(folder):
    launch = EngineLaunch(model=str(folder), context=256)
    with pytest.raises(DoesNotFit, match=r"loading takes up to .* MiB, there are 256 MiB: give it that much memory"):
        TorchRunner.load(launch, folder, memory_bytes=2**28)


def test_a_16_bit_checkpoint_takes_half_the_kv_bytes(folder, tmp_path, runner):
    save_tiny_model("llama", tmp_path, torch.bfloat16)
    assert load(tmp_path).num_blocks == 2 * runner.num_blocks


def test_an_int8_cache_takes_the_blocks_that_were_planned_and_answers_almost_as_a_wide_one(folder, runner):
    narrow = load(folder, kv_dtype=KvDtype.INT8)
    block_bytes = 2 * 2 * 16 * 2 * (16 + 2)  # layers x (keys, values) x tokens x heads x (head size, fp16 scale)
    assert narrow.num_blocks == KV_BYTES // block_bytes
    assert narrow.cache.num_bytes == narrow.plan.pool_bytes == narrow.num_blocks * block_bytes
    params = [greedy_params(8)] * len(PROMPTS)
    pairs = zip(answers(narrow, PROMPTS, params), answers(runner, PROMPTS, params), strict=True)
    alike = [ours == theirs for answer, expected in pairs for ours, theirs in zip(answer, expected, strict=True)]
    assert sum(alike) >= 0.7 * len(alike)


@pytest.mark.parametrize("name", ["mistral_window", "gemma3"])
def test_an_int8_cache_serves_window_layers(name, tmp_path):
    save_tiny_model(name, tmp_path)
    narrow, wide = (load(tmp_path, kv_dtype=kv_dtype) for kv_dtype in (KvDtype.INT8, KvDtype.AUTO))
    params = [greedy_params(8)] * len(PROMPTS)
    pairs = zip(answers(narrow, PROMPTS, params), answers(wide, PROMPTS, params), strict=True)
    alike = [ours == theirs for answer, expected in pairs for ours, theirs in zip(answer, expected, strict=True)]
    assert sum(alike) >= 0.7 * len(alike)


def test_fp8_is_refused_where_the_device_cannot_read_it_and_int8_nowhere():
    with pytest.raises(BadLaunch, match="fp8 needs --device cuda; --kv-dtype int8 is as small"):
        TorchRunner.load(EngineLaunch(model="/nowhere", kv_dtype=KvDtype.FP8), Path("/nowhere"))
    with pytest.raises(BadLaunch, match=r"capability 8\.9 .*, this one has 8\.6; --kv-dtype int8"):
        check_kv_dtype(KvDtype.FP8, Device.CUDA, (8, 6))
    check_kv_dtype(KvDtype.FP8, Device.CUDA, (8, 9))
    check_kv_dtype(KvDtype.FP8, Device.CUDA, (9, 0))
    check_kv_dtype(KvDtype.INT8, Device.CUDA, (8, 0))
    check_kv_dtype(KvDtype.INT8, Device.CPU, None)


def test_a_serving_process_starts_without_torch_so_that_its_threads_can_be_set_up_first():
    code = "import sys, tidegate_engine.serve; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})
