"""What one pod takes in all, summed as the scheduler and quotas do. Pure: nodes.py and quota.py count with it.

containers, and sidecars, which never end     run together: their sum
other init containers                         run one by one before them: at least what each takes
"""

from collections.abc import Callable, Mapping
from decimal import Decimal

from tidegate_operator.resources import Manifest


def pod_total(spec: Manifest, taken_by: Callable[[Manifest], Mapping[str, Decimal]]) -> dict[str, Decimal]:
    """By resource; `taken_by` reads one container."""
    inits = spec.get("initContainers", ())
    sidecars = [each for each in inits if each.get("restartPolicy") == "Always"]
    totals: dict[str, Decimal] = {}
    for container in (*spec.get("containers", ()), *sidecars):
        for resource, amount in taken_by(container).items():
            totals[resource] = totals.get(resource, Decimal(0)) + amount
    for container in (each for each in inits if each.get("restartPolicy") != "Always"):
        for resource, amount in taken_by(container).items():
            totals[resource] = max(totals.get(resource, Decimal(0)), amount)
    return totals
