"""Whether the scheduler may ever put a pool's pods on a node: selector, required affinity, taints. Pure.

Called by capacity.py. What changes by itself (cordons, full nodes) is not asked here; affinity to other pods is left to
the scheduler.
"""

from collections.abc import Iterable

from tidegate_operator.api.affinity import NodeRequirement, NodeTerm
from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.manifests.pod import tolerations
from tidegate_operator.resources import Manifest
from tidegate_operator.world.observed import Node, Taint

_REPELLING_EFFECTS = ("NoSchedule", "NoExecute")


def may_run(pool: InferencePool, node: Node) -> bool:
    """As far as the node itself decides."""
    wanted = pool.spec.pod.node_selector.items()
    if not all(node.labels.get(key) == value for key, value in wanted) or not _is_required(pool, node):
        return False
    if not node.taints:  # most have none, and there may be thousands
        return True
    borne = tolerations(pool)
    return all(_is_borne(taint, borne) for taint in node.taints)


def _is_required(pool: InferencePool, node: Node) -> bool:
    affinity = pool.spec.pod.affinity
    if affinity is None or affinity.node_affinity is None:
        return True
    required = affinity.node_affinity.required_during_scheduling_ignored_during_execution
    return required is None or any(_meets(term, node) for term in required.node_selector_terms)


def _meets(term: NodeTerm, node: Node) -> bool:
    """An empty term is met by no node."""
    if not term.match_expressions and not term.match_fields:
        return False
    fields = {"metadata.name": node.name}
    return all(_holds(each, node.labels.get(each.key)) for each in term.match_expressions) and all(
        _holds(each, fields.get(each.key)) for each in term.match_fields
    )


def _holds(requirement: NodeRequirement, value: str | None) -> bool:
    match requirement.operator:
        case "In":
            return value in requirement.values
        case "NotIn":
            return value not in requirement.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            return value is not None and _compares(requirement, value)


def _compares(requirement: NodeRequirement, value: str) -> bool:
    """Whole numbers only, and one to compare with; anything else holds for no node."""
    try:
        (bound,) = map(int, requirement.values)
        return int(value) > bound if requirement.operator == "Gt" else int(value) < bound
    except ValueError:
        return False


def _is_borne(taint: Taint, borne: Iterable[Manifest]) -> bool:
    return taint.effect not in _REPELLING_EFFECTS or any(_bears(each, taint) for each in borne)


def _bears(toleration: Manifest, taint: Taint) -> bool:
    if toleration.get("effect") not in (None, taint.effect):
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in (None, taint.key)
    return toleration.get("key") == taint.key and toleration.get("value", "") == taint.value
