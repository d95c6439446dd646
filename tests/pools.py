"""Pools for tests: small manifests, and the observed world around them. Pure."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from shapes import shape_of
from tidegate_core.telemetry import EngineSizing, LoadReport, StartReport, StepFit
from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.decisions.engine_version import EngineDefaults
from tidegate_operator.decisions.plan import Plan, PlanSettings
from tidegate_operator.decisions.planning import plan
from tidegate_operator.decisions.scale import ScaleTiming
from tidegate_operator.manifests.pod import Runtime
from tidegate_operator.resources import Manifest
from tidegate_operator.world.observed import Inspection, Observed, Pod, Termination

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
UID = "00000000-0000-0000-0000-000000000001"
SETTINGS = PlanSettings(EngineDefaults(Runtime("engine:1", {}), drain_token_sha256=("ab" * 32,)), ScaleTiming())

IDLE = LoadReport(
    boot_id="boot-1", arrivals=0, rejects=0, completions=0, preemptions=0, running=0, waiting=0, kv_blocks_used=0,
    kv_blocks_total=500, eta_seconds=0.0, draining=False, step_fit=StepFit(),
    sizing=EngineSizing(
        context=2048, slots=8, kv_blocks_total=500, block_size=16, kv_bytes=1, weight_bytes=1, resident_bytes=1
    ),
    start=StartReport(load_seconds=20, warm_up_seconds=3),
)  # fmt: skip


CLAIM = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "models"},
    "spec": {"accessModes": ["ReadOnlyMany"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": ""},
}


def pool_manifest(name: str = "chat", **spec: Any) -> dict[str, Any]:
    """A GPU pool of a small model; keyword arguments replace parts of its spec."""
    return {
        "apiVersion": "tidegate.dev/v1alpha1",
        "kind": "InferencePool",
        "metadata": {"name": name},
        "spec": {
            "model": {"uri": "pvc://models/qwen"},
            "context": {"max": 4096, "min": 2048},
            "accelerator": {"memory": "24Gi"},
            **spec,
        },
    }


def cpu_pool_manifest(name: str = "chat", memory: str = "40Gi", **spec: Any) -> dict[str, Any]:
    pod = {"resources": {"limits": {"cpu": "1", "memory": memory}}}
    return pool_manifest(name, accelerator={"resource": "cpu"}, pod=pod, **spec)


def stored(manifest: Manifest, **metadata: Any) -> InferencePool:
    """As the API server would give it back."""
    known = {"namespace": "team", "uid": UID, "generation": 1}
    return InferencePool.model_validate({**manifest, "metadata": {**manifest["metadata"], **known, **metadata}})


def pool(**spec: Any) -> InferencePool:
    return stored(pool_manifest(**spec))


def pod(name: str = "chat-a", **facts: Any) -> Pod:
    """A serving pod, ready for an hour."""
    usual = Pod(
        name=name, uid=name, template="", ip="10.0.0.1", created_at=NOW - timedelta(hours=2),
        ready_since=NOW - timedelta(hours=1), draining_since=None, is_serving=True, is_terminating=False,
        is_running=True, deletion_cost=0, trouble=None,
    )  # fmt: skip
    return replace(usual, **facts)


def load(**changes: Any) -> LoadReport:
    return IDLE.model_copy(update=changes)


def inspected(message: str | None = None, exit_code: int = 0, attempt: int = 1, **facts: Any) -> Inspection:
    """A finished inspection; by default it found the usual model."""
    ended = Termination(exit_code, "Completed", shape_of().to_json() if message is None else message)
    name = f"{job_prefix()}{attempt}"
    usual = Inspection(
        name, name, attempt, is_finished=True, finished_at=NOW, failure="", termination=ended, trouble=None,
        created_at=NOW, has_pod=True,
    )  # fmt: skip
    return replace(usual, **facts)


def job_prefix() -> str:
    """Name of the usual pool's inspection Jobs, without the number."""
    (job,) = plan(pool(), Observed(), SETTINGS, NOW).apply
    return str(job["metadata"]["name"])[:-1]


def carried_out(observed: Observed, steps: Plan) -> Observed:
    """The world after a plan, as far as the API server goes: what was applied exists, what was deleted does not."""
    gone = {(each["kind"], each["metadata"]["name"]) for each in (*steps.delete, *steps.apply)}
    kept = [each for each in observed.children if (each["kind"], each["metadata"]["name"]) not in gone]
    made = [
        {**each, "metadata": {"uid": each["metadata"]["name"], "generation": 1, **each["metadata"]}}
        for each in steps.apply
    ]
    jobs = {each["metadata"]["name"] for each in (*kept, *made) if each["kind"] == "Job"}
    return replace(
        observed,
        children=(*kept, *made),
        inspections=tuple(each for each in observed.inspections if each.name in jobs),
    )


def settled(subject: InferencePool | None = None, settings: PlanSettings = SETTINGS) -> Observed:
    """The usual pool after everything was applied, without pods."""
    subject = subject or pool()
    observed = replace(Observed(), inspections=(inspected(),))
    for _ in range(4):
        observed = carried_out(observed, plan(subject, observed, settings, NOW))
    return observed
