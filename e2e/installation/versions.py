"""resourceVersions of a namespace: what quiescence compares, and what a person looks at who wonders who writes."""

from e2e.cluster.access import ApiAccess
from e2e.installation.pool import OWNED
from e2e.installation.quiescence import Versions
from tidegate_operator.report.events import CONTROLLER
from tidegate_operator.resources import EVENT, POOL

KINDS = (POOL, *OWNED, EVENT)


def resource_versions(access: ApiAccess, namespace: str) -> Versions:
    """Of everything in the namespace that the operator touches or owns; Events only where they are its own."""
    return {
        f"{kind.kind}/{item['metadata']['name']}": item["metadata"]["resourceVersion"]
        for kind in KINDS
        for item in access.requests.get(kind.path(namespace))["items"]
        if item.get("reportingController", CONTROLLER) == CONTROLLER
    }
