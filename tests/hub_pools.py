"""Pools of a hub's model: their manifests, what an inspection finds, and the claim that a cache is."""

from typing import Any

from pools import pool_manifest, stored
from shapes import shape_of
from tidegate_core.hub import Snapshot
from tidegate_core.inspected import Inspected
from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.resources import Manifest

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NEXT_COMMIT = "f" * 40
GIB = 2**30
NUM_BYTES = 16 * GIB
TOKEN = {"name": "hf", "key": "read.token"}


def hub_manifest(
    cache: dict[str, Any] | None = None, model: dict[str, Any] | None = None, **spec: Any
) -> dict[str, Any]:
    kept = {} if cache is None else {"cache": cache}
    return pool_manifest(model={"uri": "hf://Qwen/Qwen3-8B", "tokenSecretRef": TOKEN, **(model or {})}, **kept, **spec)


def hub_pool(cache: dict[str, Any] | None = None, model: dict[str, Any] | None = None, **spec: Any) -> InferencePool:
    return stored(hub_manifest(cache, model, **spec))


def found(commit: str = COMMIT, num_bytes: int = NUM_BYTES, file: str | None = None) -> str:
    """An inspection's last words."""
    return Inspected(shape_of(), Snapshot("Qwen/Qwen3-8B", commit, file), num_bytes).to_json()


def live_claim(wanted: Manifest, **changes: Any) -> Manifest:
    """A claim as the API server gives it back."""
    return {**wanted, "metadata": {"uid": "claim-1", **wanted["metadata"], **changes}}
