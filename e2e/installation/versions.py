"""resourceVersions of a namespace: what quiescence compares, and what a person looks at who wonders who writes."""

import json

from e2e.cluster.access import ApiAccess
from e2e.installation.quiescence import Versions
from tidegate_operator.report.events import CONTROLLER

KINDS = (
    "inferencepools.tidegate.dev,deployments,replicasets,pods,services,serviceaccounts,configmaps,"
    "controllerrevisions,jobs,events.events.k8s.io"
)


def resource_versions(access: ApiAccess, namespace: str) -> Versions:
    """Of everything in the namespace that the operator touches or owns; Events only where they are its own."""
    items = json.loads(access.kubectl("get", KINDS, "--namespace", namespace, "-o", "json"))["items"]
    ours = [item for item in items if item.get("reportingController", CONTROLLER) == CONTROLLER]
    return {f"{item['kind']}/{item['metadata']['name']}": item["metadata"]["resourceVersion"] for item in ours}
