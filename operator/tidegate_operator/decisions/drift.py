"""Whether a live object already is what we want, so that a satisfied plan writes nothing. Pure.

Every child carries a hash of the manifest applied last. Same hash and every field of ours at its value: nothing to do.
Another hash: we want something else, perhaps fewer fields, which only an apply can take away. Fields that others own
are not looked at.
"""

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256

from tidegate_operator.labels import APPLIED_ANNOTATION
from tidegate_operator.manifests.merge import merge
from tidegate_operator.resources import CONTROLLER_REVISION, JOB, Manifest
from tidegate_operator.world.observed import Observed

_MERGE_KEYS = ("mountPath", "name")  # of the lists that others may add to: volume mounts; containers, variables, ports


def stamped(manifest: Manifest) -> Manifest:
    """The manifest with its own hash as an annotation."""
    digest = sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()[:16]
    return merge(manifest, {"metadata": {"annotations": {APPLIED_ANNOTATION: digest}}})


def is_satisfied(wanted: Manifest, live: Manifest | None) -> bool:
    """`wanted` is stamped."""
    return live is not None and _contains(live, wanted)


def missing(observed: Observed, wanted: tuple[Manifest, ...]) -> tuple[Manifest, ...]:
    """Those that are not so yet. Jobs and revisions never change once they exist."""
    found = []
    for manifest in map(stamped, wanted):
        live = observed.child(manifest["kind"], manifest["metadata"]["name"])
        is_immutable = manifest["kind"] in (JOB.kind, CONTROLLER_REVISION.kind)
        if not (is_immutable and live is not None) and not is_satisfied(manifest, live):
            found.append(manifest)
    return tuple(found)


def _contains(live: object, wanted: object) -> bool:
    if live == wanted:  # most parts are, and equal parts are compared in C
        return True
    if isinstance(wanted, Mapping):
        return isinstance(live, Mapping) and all(
            _contains(live.get(key), value) for key, value in wanted.items() if not _is_empty(value) or key in live
        )
    if isinstance(wanted, Sequence) and not isinstance(wanted, str):
        return isinstance(live, Sequence) and _contains_items(live, wanted)
    return False


def _contains_items(live: Sequence[object], wanted: Sequence[object]) -> bool:
    """Lists whose items have names are merged by them, so others may have put theirs in between: a variable, a port."""
    for key in _MERGE_KEYS:
        if wanted and all(isinstance(each, Mapping) and key in each for each in wanted):
            known = {each[key]: each for each in live if isinstance(each, Mapping) and key in each}
            return all(_contains(known.get(each[key]), each) for each in wanted if isinstance(each, Mapping))
    return len(live) == len(wanted) and all(_contains(have, want) for have, want in zip(live, wanted, strict=True))


def _is_empty(value: object) -> bool:
    """The API server drops empty objects, lists and strings, so their absence is no difference."""
    return value in ({}, [], "", None)
