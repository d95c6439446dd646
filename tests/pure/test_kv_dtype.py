"""An 8-bit KV cache from a manifest or a flag through sizing to the engine's arguments; and as what would help."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from configs import config_directory
from pools import SETTINGS, pool
from shapes import full_layers, shape_of
from tidegate_cli.__main__ import main
from tidegate_core.accelerator import Device, find_accelerator
from tidegate_core.fit import Demand, RemedyKind, Target
from tidegate_core.sizing import plan_fit
from tidegate_core.storage import KvDtype, storage_of
from tidegate_operator.decisions.rendering import engine_launch
from tidegate_operator.decisions.revisions import inputs_hash
from tidegate_operator.sizing.fitting import find_fit

WIDE = 2 * 36 * 8 * 128 * 2  # bytes of a token of Qwen3-8B in 16 bits
H100, L4 = (Target(Device.CUDA, find_accelerator(name).memory_bytes) for name in ("H100", "L4"))
NARROW = 2 * 36 * 8 * (128 + 2)  # an element is a byte, and each token and head has an fp16 scale


def model_with(kv_cache_dtype: str) -> dict[str, Any]:
    return {**pool().spec.model.to_wire(), "kvCacheDtype": kv_cache_dtype}


@pytest.mark.parametrize(("word", "kv_dtype"), [("Int8", KvDtype.INT8), ("Fp8", KvDtype.FP8)])
def test_the_manifests_word_reaches_sizing_and_engines_and_rolls_them(word: str, kv_dtype: KvDtype) -> None:
    plain, narrow = pool(), pool(model=model_with(word))
    before, after = (find_fit(each, shape_of(), None).fit for each in (plain, narrow))
    assert before is not None
    assert after is not None
    assert (before.kv_bytes_per_token, after.kv_bytes_per_token) == (WIDE, NARROW)
    assert after.kv_blocks > 1.9 * before.kv_blocks
    assert engine_launch(plain, before, SETTINGS.engine).kv_dtype is KvDtype.AUTO
    assert engine_launch(narrow, after, SETTINGS.engine).kv_dtype is kv_dtype
    assert inputs_hash(narrow) != inputs_hash(plain)


def test_a_pool_that_is_short_of_kv_is_told_the_field_to_set_once_and_gets_what_that_promises() -> None:
    demanding = {"accelerator": {"memory": "24Gi"}, "context": {"max": 40_960, "min": 32_768}}
    message = find_fit(pool(**demanding), shape_of(), None).message
    found = re.search(r"help: set model\.kvCacheDtype to Int8 \(context ([\d,]+), (\d+ slots)\)", message)
    assert found is not None
    better = find_fit(pool(**demanding, model=model_with("Int8")), shape_of(), None).message
    assert f"give context {found[1]}" in better
    assert f"and {found[2]}" in better
    assert "kvCacheDtype" not in better


def test_what_a_float32_model_saves_is_three_quarters() -> None:
    shape = shape_of(full_layers(2, 2, 64), dtype="f32")
    wide, narrow = (
        plan_fit(shape, H100, Demand(), storage_of(shape, kv_dtype)).kv_bytes_per_token
        for kv_dtype in (KvDtype.AUTO, KvDtype.INT8)
    )
    assert (wide, narrow) == (2 * 2 * 2 * 64 * 4, 2 * 2 * 2 * 66)


def test_int8_is_the_first_way_out_and_not_one_where_it_is_set_already() -> None:
    demand = Demand(context_max=40_960, context_min=40_000)
    first = plan_fit(shape_of(), L4, demand).remedies[0]
    assert (first.kind, first.is_offered) == (RemedyKind.KV_8BIT, True)
    narrow = plan_fit(shape_of(), L4, demand, storage_of(shape_of(), KvDtype.INT8))
    assert (narrow.fits, narrow.context, narrow.slots) == (True, first.context, first.slots)
    much = Demand(context_max=10**6, context_min=10**6)
    long = shape_of(max_context=10**6)
    still_short = plan_fit(long, L4, much, storage_of(long, KvDtype.INT8))
    assert not still_short.fits
    assert all(remedy.kind is not RemedyKind.KV_8BIT for remedy in still_short.remedies)


POOL = """
apiVersion: tidegate.dev/v1alpha1
kind: InferencePool
metadata: {name: chat}
spec:
  model: {uri: pvc://models/qwen3-8b, kvCacheDtype: Int8}
  accelerator: {memory: 80Gi}
"""


def test_the_command_takes_it_from_the_manifest_and_a_flag_wins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(config_directory(tmp_path / "qwen3-8b"))
    (tmp_path / "pool.yaml").write_text(POOL)

    def kv_bytes_per_token(*flags: str) -> int:
        assert main(["plan", "--model", model, *flags, "-o", "json"]) == 0
        answer: dict[str, int] = json.loads(capsys.readouterr().out)
        return answer["kvBytesPerToken"]

    manifest = ("-f", str(tmp_path / "pool.yaml"))
    assert kv_bytes_per_token("--gpu", "H100") == WIDE
    assert kv_bytes_per_token("--gpu", "H100", "--kv-dtype", "fp8") == NARROW
    assert kv_bytes_per_token(*manifest) == NARROW
    assert kv_bytes_per_token(*manifest, "--kv-dtype", "auto") == WIDE


def test_a_kv_dtype_that_is_none_is_refused_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refusal:
        main(["plan", "--model", "/m", "--kv-dtype", "int4"])
    assert refusal.value.code == 2
    assert re.search("int4.*auto.*int8.*fp8", capsys.readouterr().err)


def test_fp8_is_not_planned_for_a_cpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(config_directory(tmp_path / "qwen3-8b"))
    assert main(["plan", "--model", model, "--cpu-memory", "64Gi", "--kv-dtype", "fp8"]) == 2
    assert "needs a GPU of compute capability 8.9 or newer; --kv-dtype int8" in capsys.readouterr().err
