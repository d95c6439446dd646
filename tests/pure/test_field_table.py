"""Every field of a pool, and whether a change of it replaces pods: a field that is not in the table fails the test."""

from collections.abc import Iterator
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from pools import pool
from tidegate_operator.api.spec import InferencePoolSpec
from tidegate_operator.decisions.revisions import inputs_hash

SECRET = {"name": "s", "key": "k"}
TERM = {"matchExpressions": [{"key": "a", "operator": "Exists"}]}
NODE_AFFINITY = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [TERM]}}}

ROLLS: dict[str, Any] = {
    "model.uri": "pvc://models/other",
    "model.revision": "v2",
    "model.tokenSecretRef": SECRET,
    "model.pullPolicy": "Never",
    "model.servedNames": ["a"],
    "model.chatTemplate": "x",
    "model.kvCacheDtype": "Int8",
    "model.quantization": "Int8",
    "cache": {},  # whether there is one; its size and class are the claim's matter
    "context.max": 2048,
    "context.min": 1024,
    "traffic.promptTokens": 10,
    "traffic.outputTokens": 10,
    "accelerator.resource": "amd.com/gpu",
    "accelerator.memory": "48Gi",
    "accelerator.count": 2,
    "objectives.itlMilliseconds": 50,
    "queue.maxRequests": 1,
    "queue.maxTokens": 1000,
    "queue.maxWaitSeconds": 5,
    "access.apiKeysSecretRef": SECRET,
    "access.trustFairnessHeader": True,
    "engine.image": "mirror.example/engine:1",
    "engine.extraArgs": ["--prefix-cache=off"],
    "drain.timeoutSeconds": 5,
    "pod.nodeSelector": {"a": "b"},
    "pod.tolerations": [{"operator": "Exists"}],
    "pod.affinity": NODE_AFFINITY,
    "pod.priorityClassName": "high",
    "pod.runtimeClassName": "nvidia",
    "pod.imagePullSecrets": [{"name": "registry"}],
    "pod.env": [{"name": "A", "value": "b"}],
    "pod.labels": {"a": "b"},
    "pod.annotations": {"a": "b"},
    "pod.resources": {"requests": {"cpu": "2"}},
}
ROLLS_NOTHING: dict[str, Any] = {
    "replicas": 3,
    "minReplicas": 2,
    "maxReplicas": 9,
    "objectives.ttftMilliseconds": 500,
    "scaling.mode": "Manual",
    "scaling.scaleDownHoldSeconds": 7,
    "rollout.strategy": "Surge",
    "rollout.progressDeadlineSeconds": 60,
    "engine.upgrade": "Follow",
    "endpointPickerRef": {"name": "picker"},
    "suspend": True,
}

TABLE = {**ROLLS, **ROLLS_NOTHING}


def fields(model: type[BaseModel], prefix: str = "", depth: int = 2) -> Iterator[str]:
    """Paths of fields, two levels deep where the table does not have the first one."""
    for name, field in model.model_fields.items():
        path = f"{prefix}{field.alias or name}"
        kinds = [each for each in (field.annotation, *get_args(field.annotation)) if isinstance(each, type)]
        parts = [each for each in kinds if issubclass(each, BaseModel)]
        is_list = getattr(field.annotation, "__origin__", None) is tuple
        if parts and depth > 1 and not is_list and path not in TABLE:
            yield from fields(parts[0], f"{path}.", depth - 1)
        else:
            yield path


def spec_with(path: str, value: Any) -> dict[str, Any]:
    """The usual pool's, one field changed."""
    section, _, name = path.partition(".")
    if not name:
        return {section: value}
    usual = {
        "model": {"uri": "pvc://models/qwen"}, "context": {"max": 4096, "min": 2048}, "accelerator": {"memory": "24Gi"},
    }  # fmt: skip
    return {section: {**usual.get(section, {}), name: value}}


@pytest.mark.parametrize("path", ROLLS)
def test_a_field_that_pods_see_replaces_them(path: str) -> None:
    assert inputs_hash(pool(**spec_with(path, ROLLS[path]))) != inputs_hash(pool())


@pytest.mark.parametrize("path", ROLLS_NOTHING)
def test_a_field_that_pods_do_not_see_replaces_none(path: str) -> None:
    assert inputs_hash(pool(**spec_with(path, ROLLS_NOTHING[path]))) == inputs_hash(pool())


def test_the_table_has_every_field() -> None:
    missing = set(fields(InferencePoolSpec)) ^ set(TABLE)
    assert not missing, "say in this table, and in docs/rollouts.md, whether a change of them replaces pods"
