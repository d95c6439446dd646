"""What a step allocates at its peak is within the terms that sizing leaves for it: activations, and logits.

On models that are wide for their size, as real ones are, so that the terms are what counts.
"""

import gc
import weakref

import pytest
import torch

from allocations import peak_bytes
from tidegate_checkpoint.shape import read_shape
from tidegate_core.accelerator import Device
from tidegate_core.launch import EngineLaunch
from tidegate_core.memory import LOGITS_COPIES, LOGITS_ROWS, STEP_TOKENS, activation_bytes
from tidegate_engine.attention.base import AttentionInputs
from tidegate_engine.attention.once_a_step import once_a_step
from tidegate_engine.compute.torch_runner import TorchRunner
from tidegate_engine.request import SamplingParams
from tidegate_engine.runner import RowExtras, ScheduledRow, StepBatch
from tiny_models import save_tiny_model

CONTEXT = 8192
NUM_ROWS = 200  # sampled: several chunks of logits
WIDE = {"hidden_size": 256, "intermediate_size": 1024, "num_key_value_heads": 1, "max_position_embeddings": CONTEXT}
VOCAB_SIZE = 20_000
SLACK = 1.02  # indexes, positions, tables
GREEDY = SamplingParams(1, temperature=0.0)


def load(name, folder, dtype, **changes) -> TorchRunner:
    save_tiny_model(name, folder, dtype, **changes)
    launch = EngineLaunch(model=str(folder), kv_memory=2**26, context=changes["max_position_embeddings"], threads=2)
    return TorchRunner.load(launch, folder)


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def wide(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    runner = load(request.param, folder, torch.bfloat16, **WIDE)
    return runner, activation_bytes(read_shape(folder), Device.CPU, 1)


def row(runner: TorchRunner, end: int, num_tokens: int, *, name: str = "row", first_block: int = 0) -> ScheduledRow:
    """Not sampled. Blocks may be anybody's: nobody reads the answer."""
    num_blocks = -(-end // runner.block_size)
    table = tuple((first_block + place) % runner.num_blocks for place in range(num_blocks))
    tokens = tuple((3 * place + 1) % 200 for place in range(num_tokens))
    return ScheduledRow(name, tokens, end - num_tokens, (table,) * len(runner.kv_windows), None, 0)


STEPS = {
    "a whole prompt": [(STEP_TOKENS, STEP_TOKENS)],
    "the end of a long prompt": [(CONTEXT, STEP_TOKENS)],
    "many prompts": [(128, 128)] * (STEP_TOKENS // 128),
    "long answers beside a prompt": [(CONTEXT, 1)] * 64 + [(STEP_TOKENS - 64, STEP_TOKENS - 64)],
}


@pytest.mark.parametrize("name", STEPS)
def test_a_full_step_is_within_the_activation_peak_that_is_planned(wide, name):
    runner, planned_bytes = wide
    rows = tuple(row(runner, end, num_tokens) for end, num_tokens in STEPS[name])
    runner.run(StepBatch(rows))
    peak = peak_bytes(lambda: runner.run(StepBatch(rows)))
    print(f"\n{name}: peak {peak / 2**20:.1f} MiB, planned {planned_bytes / 2**20:.1f} MiB")
    assert planned_bytes / 4 < peak <= planned_bytes * SLACK


@pytest.fixture(
    scope="module",
    params=[("llama", torch.float32), ("gemma3_softcap", torch.float32), ("gemma3_softcap", torch.bfloat16)],
    ids=str,
)
def talkative(request, tmp_path_factory):
    name, dtype = request.param
    return load(name, tmp_path_factory.mktemp(name), dtype, vocab_size=VOCAB_SIZE, max_position_embeddings=512)


SAMPLINGS = {
    "greedy": GREEDY,
    "logprobs": SamplingParams(1, temperature=0.0, num_logprobs=5),
    "drawn": SamplingParams(1, temperature=1.0, top_p=0.9, min_p=0.01, seed=3, num_logprobs=0),
    "biased": SamplingParams(1, temperature=1.0, top_k=40, seed=3, logit_bias=((7, 9.0),)),
}


@pytest.mark.parametrize("name", SAMPLINGS)
def test_logits_of_many_rows_take_no_more_than_is_planned_for_them(talkative, name):
    rows = tuple(
        row(talkative, 1, 1, name=str(number))._replace(sampling=SAMPLINGS[name]) for number in range(NUM_ROWS)
    )
    assert_logits_fit(talkative, StepBatch(rows))


def test_neither_do_those_of_a_prompt_of_which_every_token_is_asked_for(talkative):
    asked = RowExtras(num_prompt_logprobs=20, prompt_targets=(5,) * NUM_ROWS)
    assert_logits_fit(talkative, StepBatch((row(talkative, NUM_ROWS, NUM_ROWS)._replace(extras=asked),)))


def assert_logits_fit(runner: TorchRunner, batch: StepBatch) -> None:
    planned_bytes = LOGITS_ROWS[Device.CPU] * VOCAB_SIZE * 4 * LOGITS_COPIES
    peak = peak_bytes(lambda: runner.run(batch))
    print(f"\npeak {peak / 2**20:.1f} MiB, planned {planned_bytes / 2**20:.1f} MiB")
    assert planned_bytes / 2 <= peak <= planned_bytes * 1.1  # hidden states of the rows, and their indexes


def test_what_was_derived_from_a_step_is_gone_with_it():
    tensor = torch.zeros(1, dtype=torch.int32)
    inputs = AttentionInputs(tensor, tensor, tensor, tensor, 1, 1)
    made = []

    @once_a_step
    def derived(_: AttentionInputs, number: int) -> torch.Tensor:
        made.append(number)
        return torch.zeros(number)

    first = weakref.ref(derived(inputs, 3))
    assert derived(inputs, 3) is first()
    assert (len(derived(inputs, number=4)), made) == (4, [3, 4])
    del inputs
    gc.collect()
    assert first() is None
