"""int8 weights from a manifest or a flag through sizing to the engine's arguments; and as what would help on CPU."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from configs import config_directory
from pools import SETTINGS, pool
from shapes import shape_of
from tidegate_cli.__main__ import main
from tidegate_core.accelerator import Device
from tidegate_core.fit import Demand, RemedyKind, Target
from tidegate_core.shape import TpRule, WeightGroup, WeightRole
from tidegate_core.sizing import plan_fit
from tidegate_core.storage import KvDtype, Quantization, storage_of
from tidegate_operator.decisions.rendering import engine_launch
from tidegate_operator.decisions.revisions import inputs_hash
from tidegate_operator.sizing.fitting import find_fit

CPU_16G, CPU_64G = (
    {"accelerator": {"resource": "cpu"}, "pod": {"resources": {"limits": {"memory": memory}}}}
    for memory in ("16Gi", "64Gi")
)
INT8 = Quantization.INT8


def int8_model() -> dict[str, Any]:
    return {**pool().spec.model.to_wire(), "quantization": "Int8"}


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_a_matrix_takes_a_byte_an_element_and_eight_an_output(dtype: str) -> None:
    storage = storage_of(shape_of(dtype=dtype), quantization=INT8)
    for role, rows in ((WeightRole.LINEAR, 1000), (WeightRole.HEAD, 32_000)):
        group = WeightGroup(role, TpRule.SPLIT, dtype, num_elements=640 * rows, num_bytes=1, width=640)
        assert storage.weight_bytes(group, Device.CPU) == rows * (640 + 8)


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_embeddings_stay_in_the_file_a_tied_one_is_the_head_and_vectors_are_fp32(dtype: str) -> None:
    storage = storage_of(shape_of(dtype=dtype), quantization=INT8)
    embedding = WeightGroup(WeightRole.EMBEDDING, TpRule.SPLIT, dtype, num_elements=512_000, num_bytes=1, width=512)
    assert storage.weight_bytes(embedding, Device.CPU) == 0
    assert storage.weight_bytes(embedding, Device.CPU, is_tied=True) == 1000 * (512 + 8)
    norms = WeightGroup(WeightRole.NORM, TpRule.REPLICATED, dtype, num_elements=640, num_bytes=1)
    assert storage.weight_bytes(norms, Device.CPU) == 640 * 4


def test_the_manifests_word_reaches_sizing_and_engines_and_rolls_them() -> None:
    plain, small = pool(**CPU_64G), pool(**CPU_64G, model=int8_model())
    before, after = (find_fit(each, shape_of(), None).fit for each in (plain, small))
    assert before is not None
    assert after is not None
    assert after.fits
    assert after.weight_bytes < 0.52 * before.weight_bytes
    assert engine_launch(plain, before, SETTINGS.engine).quantization is None
    assert engine_launch(small, after, SETTINGS.engine).quantization is INT8
    assert inputs_hash(small) != inputs_hash(plain)


def test_a_cpu_pool_whose_weights_do_not_fit_is_told_the_field_and_gets_what_that_promises() -> None:
    message = find_fit(pool(**CPU_16G), shape_of(), None).message
    found = re.search(r"set model\.quantization to Int8 \(context ([\d,]+), (\d+ slots?)\)", message)
    assert found is not None
    better = find_fit(pool(**CPU_16G, model=int8_model()), shape_of(), None).message
    assert found[1] in better
    assert found[2] in better
    assert "quantization" not in better


def test_a_cpu_pool_that_needs_8_bits_twice_is_told_both_fields_and_gets_what_that_promises() -> None:
    tight = {
        "accelerator": {"resource": "cpu"},
        "pod": {"resources": {"limits": {"memory": "13Gi"}}},
        "context": {"max": 32_768, "min": 32_768},
    }
    message = find_fit(pool(**tight), shape_of(), None).message
    found = re.search(
        r"help: set model\.quantization and model\.kvCacheDtype to Int8 \(context ([\d,]+), (\d+ slots?)\)", message
    )
    assert found is not None
    better = find_fit(pool(**tight, model={**int8_model(), "kvCacheDtype": "Int8"}), shape_of(), None)
    assert better.is_good
    assert f"context {found[1]}" in better.message
    assert found[2] in better.message
    for alone in ({"quantization": "Int8"}, {"kvCacheDtype": "Int8"}):
        assert not find_fit(pool(**tight, model={**pool().spec.model.to_wire(), **alone}), shape_of(), None).is_good


def test_int8_weights_are_a_way_out_on_cpu_only_and_keep_what_was_chosen_for_the_kv_cache() -> None:
    demand = Demand(context_max=8192, context_min=8192)
    cpu, cuda = (Target(device, 16 * 2**30) for device in (Device.CPU, Device.CUDA))

    def int8_remedies(target: Target, **chosen: Any) -> list[Any]:
        fit = plan_fit(shape_of(), target, demand, storage_of(shape_of(), **chosen))
        return [remedy for remedy in fit.remedies if remedy.kind is RemedyKind.WEIGHTS_8BIT]

    (remedy,) = int8_remedies(cpu, kv_dtype=KvDtype.INT8)
    tried = plan_fit(shape_of(), cpu, demand, storage_of(shape_of(), KvDtype.INT8, INT8))
    assert (remedy.is_offered, remedy.context, remedy.slots) == (True, tried.context, tried.slots)
    assert int8_remedies(cuda) == int8_remedies(cpu, quantization=INT8) == []


POOL = """
apiVersion: tidegate.dev/v1alpha1
kind: InferencePool
metadata: {name: chat}
spec:
  model: {uri: pvc://models/qwen3-8b, quantization: Int8}
  accelerator: {resource: cpu}
  pod: {resources: {limits: {memory: 64Gi}}}
"""


def test_the_command_takes_it_from_the_manifest_or_a_flag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(config_directory(tmp_path / "qwen3-8b"))
    (tmp_path / "pool.yaml").write_text(POOL)

    def weight_bytes(*flags: str) -> int:
        assert main(["plan", "--model", model, *flags, "-o", "json"]) == 0
        answer: dict[str, int] = json.loads(capsys.readouterr().out)
        return answer["weightBytes"]

    small = weight_bytes("-f", str(tmp_path / "pool.yaml"))
    assert small == weight_bytes("--cpu-memory", "64Gi", "--quantization", "int8")
    assert small < 0.6 * weight_bytes("--cpu-memory", "64Gi")


@pytest.mark.parametrize("device", [(), ("--gpu", "H100")])
def test_int8_weights_are_not_planned_for_a_gpu(
    device: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(config_directory(tmp_path / "qwen3-8b"))
    assert main(["plan", "--model", model, *device, "--quantization", "int8"]) == 2
    assert "int8 weights are offered on CPU only: give --cpu-memory" in capsys.readouterr().err
