"""Pools for tests: small manifests, and the observed world around them."""

from typing import Any

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
