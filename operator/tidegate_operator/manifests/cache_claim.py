"""The claim `<pool>-models` that a hub's model is fetched into. It says itself which snapshots it holds.

So the knowledge lives and dies with the data: a retained claim of a deleted pool is taken again with what is on it, a
claim that was deleted and made anew holds nothing.
"""

from collections.abc import Iterable
from math import ceil

from tidegate_core.quantity import format_quantity, parse_bytes
from tidegate_operator.api.model import ModelCache
from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.labels import CACHE_ROLE, HOLDS_ANNOTATION, cache_name, metadata
from tidegate_operator.resources import PERSISTENT_VOLUME_CLAIM, Manifest

NUM_MODELS = 2  # the one that serves and its successor
_GIB = 2**30


def cache_claim(
    pool: InferencePool, cache: ModelCache, num_bytes: int, holds: Iterable[str], live: Manifest | None
) -> Manifest:
    """For a model of so many bytes. A claim never shrinks, and what it was made with stays."""
    asked = cache.persistent_volume_claim
    given = parse_bytes(asked.storage) if asked.storage else ceil(NUM_MODELS * num_bytes / _GIB + 1) * _GIB
    now = live["spec"].get("resources", {}).get("requests", {}).get("storage", "0") if live else "0"
    storage = now if parse_bytes(now) >= given else format_quantity(given)
    known = {"storageClassName": asked.storage_class_name} if asked.storage_class_name else {}
    meta = metadata(pool, cache_name(pool), CACHE_ROLE, {HOLDS_ANNOTATION: ",".join(sorted(holds))})
    if cache.retain:
        meta = {key: value for key, value in meta.items() if key != "ownerReferences"}
    return {
        "apiVersion": PERSISTENT_VOLUME_CLAIM.api_version,
        "kind": PERSISTENT_VOLUME_CLAIM.kind,
        "metadata": meta,
        "spec": {
            "accessModes": [mode.value for mode in asked.modes],
            "resources": {"requests": {"storage": storage}},
            **known,
        },
    }


def held_by(claim: Manifest | None) -> frozenset[str]:
    """Names of the snapshots that a claim says it holds."""
    said = claim["metadata"].get("annotations", {}).get(HOLDS_ANNOTATION, "") if claim else ""
    return frozenset(filter(None, said.split(",")))
