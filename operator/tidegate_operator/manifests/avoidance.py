"""Nodes that keep failing a pool's pods, as a preference of a new template: rendering.py adds it. Pure.

A preference, not a rule: where no other node is left, a pod that may fail again is better than one that waits for ever.
"""

from tidegate_operator.manifests.merge import merge
from tidegate_operator.resources import Manifest

MAX_WEIGHT = 100  # of a preference


def avoiding(template: Manifest, nodes: tuple[str, ...]) -> Manifest:
    """The template, its pods rather elsewhere; what the user prefers stays beside it."""
    if not nodes:
        return template
    affinity = template["spec"].get("affinity", {}).get("nodeAffinity", {})
    preferred = "preferredDuringSchedulingIgnoredDuringExecution"
    elsewhere = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in nodes]
    terms = [*affinity.get(preferred, ()), {"weight": MAX_WEIGHT, "preference": {"matchFields": elsewhere}}]
    return merge(template, {"spec": {"affinity": {"nodeAffinity": {preferred: terms}}}})
