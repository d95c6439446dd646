"""Pools whose engines simulate: no weights, no device, ready in seconds; the operator must install engines as `sim`.

Their model is a configuration alone, sized for 24 GiB: four requests at once on a replica, so that a few clients fill
one. Their GPUs exist by name only.
"""

import json
from pathlib import Path
from typing import Any

from e2e.cluster.cluster import Cluster
from e2e.installation.pool import provide_models
from tests.configs import config_directory

MODEL = "qwen3-8b"  # the folder in the claim
SLOTS = 4


def provide_sim_model(cluster: Cluster, namespace: str, folder: Path) -> None:
    """The claims of sim_pool() in an existing namespace; `folder` is the test's own and may hold more models."""
    config_directory(folder / MODEL)
    folder.chmod(0o755)  # engines run as another user
    provide_models(cluster, namespace, folder)


def sim_pool(name: str, **spec: Any) -> str:
    """A manifest; keyword arguments replace parts of its spec."""
    document = {
        "apiVersion": "tidegate.dev/v1alpha1",
        "kind": "InferencePool",
        "metadata": {"name": name},
        "spec": {
            "model": {"uri": f"pvc://models/{MODEL}"},
            "context": {"max": 8192, "min": 2048},
            "traffic": {"promptTokens": 6000, "outputTokens": 1000},
            "accelerator": {"memory": "24Gi"},
            "pod": {"resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}}},
            **spec,
        },
    }
    return json.dumps(document)
