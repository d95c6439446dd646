"""Is it over? Resyncs of a settled pool must write nothing: no resourceVersion of anything it owns may move."""

import json
from collections.abc import Callable

from e2e.cluster.access import ApiAccess
from e2e.installation.polling import wait_for
from tidegate_operator.events import CONTROLLER

KINDS = (
    "inferencepools.tidegate.dev,deployments,replicasets,pods,services,serviceaccounts,configmaps,"
    "controllerrevisions,jobs,events.events.k8s.io"
)
NUM_RESYNCS = 4  # that must write nothing
SETTLE_SECONDS = 60.0


def resource_versions(access: ApiAccess, namespace: str) -> dict[str, str]:
    """Of everything in the namespace that the operator touches or owns; Events only where they are its own."""
    items = json.loads(access.kubectl("get", KINDS, "--namespace", namespace, "-o", "json"))["items"]
    ours = [item for item in items if item.get("reportingController", CONTROLLER) == CONTROLLER]
    return {f"{item['kind']}/{item['metadata']['name']}": item["metadata"]["resourceVersion"] for item in ours}


def moved_in_resyncs(access: ApiAccess, namespace: str, num_reconciles: Callable[[], float]) -> set[str]:
    """Names of what moved, appeared or went while the operator looked NUM_RESYNCS times at each pool; empty is right.

    Waits first until two looks at the namespace, a reconcile apart, are equal.
    """
    pools = access.kubectl("get", "inferencepools.tidegate.dev", "--namespace", namespace, "-o", "name").split()

    def settled() -> dict[str, str]:
        first, count = resource_versions(access, namespace), num_reconciles()
        wait_for("a resync", lambda: num_reconciles() > count, SETTLE_SECONDS)
        return first if resource_versions(access, namespace) == first else {}

    before = wait_for("two equal looks at the namespace", settled, SETTLE_SECONDS)
    enough = num_reconciles() + NUM_RESYNCS * len(pools)
    wait_for("forced resyncs", lambda: num_reconciles() >= enough, SETTLE_SECONDS)
    after = resource_versions(access, namespace)
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
