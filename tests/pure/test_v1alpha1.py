"""Reading a pool: leniently when stored, strictly when a person wrote it."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from pool_cases import BAD_NAME_SENTENCE, BAD_NAMES, BROKEN, FINE
from tidegate_core.samples import Memory
from tidegate_operator.api.errors import BadManifest
from tidegate_operator.api.manifest import read_manifest
from tidegate_operator.api.spec import InferencePoolSpec
from tidegate_operator.api.status import ScalerStatus, ScalingEvent
from tidegate_operator.api.v1alpha1 import InferencePool


def manifest(**spec: Any) -> dict[str, Any]:
    """A pool as YAML gives it."""
    return {
        "apiVersion": "tidegate.dev/v1alpha1",
        "kind": "InferencePool",
        "metadata": {"name": "chat"},
        "spec": {"model": {"uri": "pvc://models/qwen3"}, **spec},
    }


def spec(**fields: Any) -> InferencePoolSpec:
    return InferencePool.model_validate(manifest(**fields)).spec


def test_three_lines_are_enough() -> None:
    pool = read_manifest(manifest(), source="pool.yaml")
    assert pool.spec.model.claim == "models"
    assert pool.spec.model.path == "qwen3"
    assert pool.spec.served_names(pool.metadata.name) == ("chat",)
    assert pool.spec.bounds == (1, 1)
    assert not pool.is_deleting


def test_a_stored_object_with_fields_of_a_newer_version_is_read() -> None:
    stored = manifest(fromTheFuture={"a": 1}) | {"status": {"replicas": 2, "alsoNew": True}}
    assert InferencePool.model_validate(stored).status.replicas == 2


def test_what_is_written_reads_back_the_same() -> None:
    pool = InferencePool.model_validate(
        manifest(context={"max": 4096}, pod={"resources": {"limits": {"memory": "2Gi", "cpu": 1}}})
    )
    assert InferencePool.model_validate(pool.to_wire()) == pool
    assert "maxReplicas" not in pool.to_wire()["spec"]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        pytest.param({"contxt": {"max": 1}}, "spec.contxt: is not a field", id="a misspelt field"),
        pytest.param({"context": {"maximum": 1}}, "spec.context.maximum: is not a field", id="a misspelt inner field"),
        pytest.param({"replicas": "many"}, "spec.replicas: Input should be a valid integer", id="a wrong type"),
        pytest.param({"scaling": {"mode": "Magic"}}, "'Auto' or 'Manual'", id="an unknown mode"),
        pytest.param(
            {"model": {"uri": "pvc://models/qwen3", "kvCacheDtype": "int4"}},
            "'Int8' or 'Fp8'",
            id="an unknown KV dtype",
        ),
        pytest.param(
            {"accelerator": {"memory": "lots"}}, "spec.accelerator.memory: 'lots' is not a quantity", id="a size"
        ),
    ],
)
def test_a_wrong_manifest_is_refused_with_file_field_and_remedy(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(BadManifest, match=r"^pool.yaml: ") as refusal:
        read_manifest(manifest(**changes), source="pool.yaml")
    assert complaint in str(refusal.value)


@pytest.mark.parametrize(
    ("document", "complaint"),
    [
        ({"kind": "Deployment"}, "expected kind InferencePool"),
        (["a list"], "found list"),
        (None, "found NoneType"),
        (manifest() | {"apiVersion": "inference.networking.k8s.io/v1"}, "apiVersion is inference.networking.k8s.io/v1"),
    ],
)
def test_another_document_is_refused(document: object, complaint: str) -> None:
    with pytest.raises(BadManifest, match=complaint):
        read_manifest(document, source="pool.yaml")


@pytest.mark.parametrize(
    ("fields", "start"),
    [
        ({}, 1),
        ({"replicas": 3}, 3),
        ({"minReplicas": 2}, 2),
        ({"minReplicas": 2, "maxReplicas": 4, "replicas": 3}, 3),
        ({"scaling": {"mode": "Manual"}, "replicas": 5, "minReplicas": 2, "maxReplicas": 3}, 5),
    ],
)
def test_a_pool_starts_within_its_bounds_unless_a_person_decides(fields: dict[str, Any], start: int) -> None:
    assert spec(**fields).starting_replicas == start


@pytest.mark.parametrize(("changes", "sentence"), BROKEN.values(), ids=BROKEN)
def test_a_file_is_refused_with_the_api_servers_sentence(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadManifest) as refusal:
        read_manifest(manifest(**changes), source="pool.yaml")
    assert sentence in str(refusal.value)


@pytest.mark.parametrize("name", BAD_NAMES.values(), ids=BAD_NAMES)
def test_a_name_that_children_cannot_carry_is_refused(name: str) -> None:
    with pytest.raises(BadManifest) as refusal:
        read_manifest(manifest() | {"metadata": {"name": name}}, source="pool.yaml")
    assert BAD_NAME_SENTENCE in str(refusal.value)


@pytest.mark.parametrize("changes", FINE.values(), ids=FINE)
def test_a_file_that_the_api_server_takes_is_read(changes: dict[str, Any]) -> None:
    assert read_manifest(manifest(**changes), source="pool.yaml").metadata.name == "chat"


def test_a_claim_root_is_an_empty_path() -> None:
    assert spec(model={"uri": "pvc://models/"}).model.path == ""


def test_times_are_written_as_kubernetes_writes_them() -> None:
    event = ScalingEvent(time=datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC), from_=1, to=2, reason="why")
    assert event.to_wire() == {"time": "2026-01-02T03:04:05Z", "from": 1, "to": 2, "reason": "why", "inputs": {}}


def test_the_scalers_memory_survives_a_restart_but_not_the_hold() -> None:
    before = Memory(
        desired=3, last_scale_up=1_000_000.0, panic_until=1_000_060.0, strain_per_second=0.5, strain_time=1_000_000.0,
        decided_at=1_000_005.0, peaks=((1_000_005.0, 3),),
    )  # fmt: skip
    stored = ScalerStatus.of(before).to_wire()
    after = ScalerStatus.model_validate(stored).memory(desired=3)
    assert stored["panicUntil"] == "1970-01-12T13:47:40Z"
    assert after == replace(before, decided_at=None, peaks=())
    assert ScalerStatus.of(after).to_wire() == stored
