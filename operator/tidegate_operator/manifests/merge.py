"""Strategic-merge-like patching of a rendered template: the settings' escape hatch, applied last.

Objects merge key by key, null removes a key. Lists of named things (containers, volumes, env, ports, mounts) merge by
their key as Kubernetes does; every other list is replaced.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tidegate_operator.resources import Manifest

_MERGE_KEYS: Mapping[str, str] = {
    "containers": "name", "initContainers": "name", "volumes": "name", "env": "name", "imagePullSecrets": "name",
    "volumeMounts": "mountPath", "ports": "containerPort",
}  # fmt: skip


def merge(base: Manifest, patch: Manifest) -> dict[str, Any]:  # free-form JSON in, free-form JSON out
    """A new manifest: `base` with `patch` over it; neither is changed."""
    merged = dict(base)
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(merged.get(key), Mapping):
            merged[key] = merge(merged[key], value)
        elif isinstance(value, list) and isinstance(merged.get(key), list) and key in _MERGE_KEYS:
            merged[key] = _merge_lists(merged[key], value, _MERGE_KEYS[key])
        else:
            merged[key] = value
    return merged


def _merge_lists(base: Sequence[Manifest], patch: Sequence[Manifest], key: str) -> list[Manifest]:
    """Items with the same key merge in place, others are appended."""
    by_key = {item.get(key): item for item in base}
    for item in patch:
        by_key[item.get(key)] = merge(by_key.get(item.get(key), {}), item)
    return list(by_key.values())
