"""Which of a pod's containers are ours: service meshes, secret stores and profilers add theirs. Pure readers.

The kubelet sorts statuses by name and a webhook may put its container first, so ours are found by their names.
observed.py and timeline.py ask; of templates cost.py and engine_version.py.
"""

from tidegate_operator.labels import ENGINE_CONTAINER
from tidegate_operator.resources import Manifest


def main_container(pod: Manifest) -> Manifest:
    """Of the spec of a pod, or of a pod template."""
    return _ours(pod.get("spec", {}).get("containers", ()))


def main_status(status: Manifest) -> Manifest:
    """Of an engine's, an inspection's or a download's pod; empty before the kubelet has said anything."""
    return _ours(status.get("containerStatuses", ()))


def unfinished_init(pod: Manifest) -> Manifest | None:
    """Status of the init container that the pod is at.

    A sidecar never ends: once it has started it holds nothing up.
    """
    inits = pod.get("spec", {}).get("initContainers", ())
    sidecars = {each["name"] for each in inits if each.get("restartPolicy") == "Always"}
    statuses = pod.get("status", {}).get("initContainerStatuses", ())
    return next((each for each in statuses if not _is_done(each, is_sidecar=each.get("name") in sidecars)), None)


def _ours(containers: list[Manifest]) -> Manifest:
    return next((each for each in containers if each.get("name") == ENGINE_CONTAINER), {})


def _is_done(status: Manifest, *, is_sidecar: bool) -> bool:
    if is_sidecar and status.get("started"):
        return True
    return bool(status.get("state", {}).get("terminated", {}).get("exitCode") == 0)
