"""Deterministic mode: the same bits for a token, whatever is computed beside it and whatever was cached."""

import pytest
import torch

from paged_batches import dense_attention, random_batch
from running import answers, greedy_params
from tidegate_core.errors import BadLaunch
from tidegate_core.launch import Device, EngineLaunch, KvDtype
from tidegate_engine.attention.deterministic import KEY_TILE, QUERY_TILE, attend
from tidegate_engine.compute.torch_runner import TorchRunner
from tidegate_engine.runner import ScheduledRow
from tiny_models import save_tiny_model

MODELS = [("llama", torch.float32), ("gemma3_softcap", torch.float32), ("mistral_window", torch.bfloat16)]
TOKENS = [(7 * i * i + 3 * i) % 211 for i in range(150)]

RAGGED = {
    "decodes": ((1, 17), (1, 16), (1, 203), (1, 1)),
    "whole_prompts": ((QUERY_TILE, QUERY_TILE), (KEY_TILE + 1, KEY_TILE + 1), (3, 3)),
    "mixed": ((1, 33), (1, 200), (48, 48), (5, 130), (2, 2)),
}


@pytest.mark.parametrize("name", RAGGED)
@pytest.mark.parametrize(("window", "softcap"), [(None, None), (1, None), (40, 5.0), (None, 5.0)])
def test_its_attention_equals_dense_attention(name, window, softcap):
    batch = random_batch(RAGGED[name], num_query_heads=6, num_kv_heads=2, head_dim=24)
    options = {"scale": 0.2, "window": window, "softcap": softcap}
    result = attend(batch.query, batch.pages, batch.inputs, **options)
    torch.testing.assert_close(result.double(), dense_attention(batch, **options), atol=2e-5, rtol=1e-4)


def load(folder, **options) -> TorchRunner:
    launch = EngineLaunch(model=str(folder), kv_memory=2**22, context=256, threads=2, deterministic=True, **options)
    return TorchRunner.load(launch, folder)


@pytest.fixture(scope="module", params=MODELS, ids=lambda model: model[0])
def runner(request, tmp_path_factory):
    name, dtype = request.param
    folder = tmp_path_factory.mktemp(name)
    save_tiny_model(name, folder, dtype)
    return load(folder)


def tables_from(runner: TorchRunner, first_block: int, num_blocks: int) -> tuple[tuple[int, ...], ...]:
    firsts = [first_block + group * num_blocks for group in range(len(runner.kv_windows))]
    return tuple(tuple(range(first, first + num_blocks)) for first in firsts)


def logits_by_chunks(runner: TorchRunner, ends: list[int], neighbour: list[int]) -> torch.Tensor:
    """Logits of every one of TOKENS, computed in these chunks, beside chunks of another sequence of these lengths."""
    own, others = tables_from(runner, 0, 10), tables_from(runner, 60, 10)
    logits, start, done = [], 0, 0
    for number, end in enumerate(ends):
        rows = [ScheduledRow("own", tuple(TOKENS[start:end]), start, own, None, 0)]
        if number < len(neighbour):
            other = tuple((5 * i + 1) % 211 for i in range(done, done + neighbour[number]))
            rows.insert(number % 2, ScheduledRow("other", other, done, others, None, 0))
            done += len(other)
        with torch.inference_mode():
            hidden = runner._computing.hidden(rows)
            first = len(rows[0].token_ids) if rows[0].request_id == "other" else 0
            logits.append(runner._computing.logits(hidden[first : first + end - start]))
        start = end
    return torch.cat(logits)


@pytest.mark.parametrize(
    ("ends", "neighbour"),
    [
        ([64, 150], []),
        ([16, 17, 18, 100, 150], [1, 40, 1, 1, 3]),
        ([7, 50, *range(51, 151)], [30, 2, *[1] * 40]),
    ],
    ids=["after_a_hit", "beside_others", "decoded"],
)
def test_logits_have_the_same_bits_in_any_chunks_and_beside_anything(runner, ends, neighbour):
    whole = logits_by_chunks(runner, [150], [])
    assert torch.equal(logits_by_chunks(runner, ends, neighbour), whole)


def test_answers_are_the_same_cold_warm_and_in_a_crowd(runner):
    prompts = [TOKENS[:100], TOKENS[:70] + TOKENS[3:40], TOKENS[:100], TOKENS[20:60]]
    params = [greedy_params(20)] * len(prompts)
    alone = [answers(runner, [prompt], params[:1])[0] for prompt in prompts]
    assert answers(runner, prompts, params, slots=1, has_prefix_cache=True) == alone
    assert answers(runner, prompts, params, slots=4, max_step_tokens=50, has_prefix_cache=True) == alone


def test_it_is_refused_where_it_could_not_be_kept(tmp_path):
    launch = EngineLaunch(model=str(tmp_path), device=Device.CUDA, deterministic=True)
    with pytest.raises(BadLaunch, match="--deterministic is for --device cpu"):
        TorchRunner.load(launch, tmp_path)


def test_an_8_bit_cache_is_deterministic_too(tmp_path):
    save_tiny_model("llama", tmp_path)
    runner = load(tmp_path, kv_dtype=KvDtype.INT8)
    whole = logits_by_chunks(runner, [150], [])
    assert torch.equal(logits_by_chunks(runner, [64, 100, 150], [5, 9]), whole)
