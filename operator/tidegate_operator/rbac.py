"""What the operator may do, and nothing more: the chart's roles are generated from here, tests run under them.

Secrets are never read: tokens and keys are mounted as files. Verbs are those of server-side apply (`patch`, and
`create` for the first time), of watches, and `delete` where the operator itself removes an object.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tidegate_operator.resources import (
    AUTOSCALER,
    CONFIG_MAP,
    CONTROLLER_REVISION,
    DEPLOYMENT,
    EVENT,
    GIE_POOL,
    JOB,
    LEASE,
    NETWORK_POLICY,
    NODE,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    POD_DISRUPTION_BUDGET,
    POD_MONITOR,
    POOL,
    RESOURCE_QUOTA,
    SCALED_OBJECT,
    SERVICE,
    SERVICE_ACCOUNT,
    Resource,
)

WATCH = ("list", "watch")
APPLY = ("create", "patch")


@dataclass(frozen=True)
class Rule:
    """Verbs on one resource, or on a subresource of it."""

    resource: Resource
    verbs: tuple[str, ...]
    subresource: str = ""

    def to_manifest(self) -> dict[str, Any]:
        """As a Role spells it."""
        name = f"{self.resource.plural}/{self.subresource}" if self.subresource else self.resource.plural
        return {"apiGroups": [self.resource.group], "resources": [name], "verbs": list(self.verbs)}


NEIGHBOUR_RULES = (  # APIs that need not be there
    Rule(AUTOSCALER, ("list",)),  # who else sets replicas
    Rule(SCALED_OBJECT, ("list",)),
    Rule(GIE_POOL, ("list", *APPLY, "delete")),  # who else routes to our pods; ours, where it was asked for
    Rule(POD_MONITOR, ("list", *APPLY, "delete")),
)

NAMESPACED_RULES = (
    Rule(POOL, WATCH),
    Rule(POOL, ("patch",), "status"),
    Rule(POOL, ("update",), "finalizers"),  # where OwnerReferencesPermissionEnforcement asks for it
    Rule(DEPLOYMENT, ("get", *WATCH, *APPLY)),  # get: whether a stranger has the name
    Rule(SERVICE, ("get", *WATCH, *APPLY)),
    Rule(SERVICE_ACCOUNT, ("get", *WATCH, *APPLY)),
    Rule(CONTROLLER_REVISION, ("get", *WATCH, *APPLY, "delete")),
    Rule(CONFIG_MAP, ("get", *WATCH, *APPLY, "delete")),
    Rule(JOB, ("get", *WATCH, *APPLY, "delete")),
    Rule(NETWORK_POLICY, ("get", *WATCH, *APPLY, "delete")),
    Rule(POD_DISRUPTION_BUDGET, ("get", *WATCH, *APPLY, "delete")),
    Rule(POD, (*WATCH, "patch", "delete")),  # a pod that drains is marked, one that starts protected, a dead one goes
    Rule(RESOURCE_QUOTA, ("list",)),  # how many more replicas the namespace may have
    Rule(PERSISTENT_VOLUME_CLAIM, ("get", *WATCH, *APPLY, "delete")),  # whether the user's exists; the pool's own cache
    Rule(EVENT, ("create", "patch")),
    *NEIGHBOUR_RULES,
)

ELECTION_RULES = (Rule(LEASE, ("get", "create", "patch")),)  # in the operator's own namespace alone

CLUSTER_RULES = (Rule(NODE, ("list",)),)  # accelerator memory and free devices; absent in namespaced mode


def manifest(rules: Iterable[Rule]) -> list[dict[str, Any]]:
    """The `rules` of a Role or ClusterRole."""
    return [rule.to_manifest() for rule in rules]
