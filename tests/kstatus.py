"""How kstatus, and with it Flux's `wait`, judges a custom resource: the generic rules, as a function for tests.

https://github.com/kubernetes-sigs/cli-utils/tree/master/pkg/kstatus (checkGenericProperties)
"""

from typing import Any


def kstatus(item: dict[str, Any]) -> str:
    """Of an object as the API server has it. One without any status is Current: the docs say how to wait for more."""
    metadata, status = item["metadata"], item.get("status", {})
    if "deletionTimestamp" in metadata:
        return "Terminating"
    if "observedGeneration" in status and status["observedGeneration"] != metadata["generation"]:
        return "InProgress"
    conditions = {each["type"]: each["status"] for each in status.get("conditions", ())}
    if conditions.get("Reconciling") == "True":
        return "InProgress"
    if conditions.get("Stalled") == "True":
        return "Failed"
    if conditions.get("Ready") in ("False", "Unknown"):
        return "InProgress"
    return "Current"
