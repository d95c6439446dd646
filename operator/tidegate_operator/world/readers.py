"""From the API server's JSON to facts: pure readers of pods, Jobs, nodes and Deployments, one value each.

observe.py does the I/O and calls them. People edit objects and kubelets differ: nothing that may be absent is needed.
"""

from datetime import UTC, datetime

from tidegate_operator.api.reasons import Reason
from tidegate_operator.labels import (
    DELETION_COST_ANNOTATION,
    DOWNLOAD_CONTAINER,
    DRAINING_SINCE_ANNOTATION,
    PROTECTED_ANNOTATION,
    RETRIED_ANNOTATION,
    SERVING_LABEL,
    TEMPLATE_LABEL,
)
from tidegate_operator.resources import Manifest
from tidegate_operator.world.containers import main_container, main_status, unfinished_init
from tidegate_operator.world.observed import (
    DeploymentFacts,
    Ending,
    Inspection,
    Node,
    Pod,
    Taint,
    Termination,
    Trouble,
)
from tidegate_operator.world.timeline import read_timeline

_PULL_FAILED = "ErrImagePull"
_IMAGE_TROUBLES = {_PULL_FAILED, "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"}
_OUT_OF_MEMORY_EXIT = 137
_MAX_DIGITS = 9  # of a number of replicas that anybody means
HUB_REASONS = (
    Reason.MODEL_GATED, Reason.TOKEN_INVALID, Reason.REVISION_NOT_FOUND, Reason.HUB_THROTTLED, Reason.HUB_UNREACHABLE,
    Reason.CACHE_FULL,
)  # fmt: skip
DRAIN_TOKEN_OPTION = "--drain-token-sha256="  # noqa: S105 - an option's name
_STOPPED_WORDS = (  # an engine ends in order only when it is told to, and a container that runs again was not to leave
    "the kubelet stopped the engine and started it again: a startup or liveness probe gave up; "
    "kubectl describe pod says which"
)
_CONDITION_TAINTS = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")  # set and removed by controllers
_STOPPED = Trouble(Reason.ENGINE_FAILING, _STOPPED_WORDS)


def read_pod(pod: Manifest) -> Pod:
    """Facts of an engine pod."""
    metadata, status = pod["metadata"], pod.get("status", {})
    labels, annotations = metadata.get("labels", {}), metadata.get("annotations", {})
    ready = _condition(status, "Ready")
    container, init = main_status(status), unfinished_init(pod)
    return Pod(
        name=metadata["name"],
        uid=metadata["uid"],
        template=labels.get(TEMPLATE_LABEL, ""),
        ip=status.get("podIP"),
        created_at=read_time(metadata["creationTimestamp"]),
        ready_since=_since(ready, metadata) if ready.get("status") == "True" else None,
        draining_since=_draining_since(metadata, is_serving=labels.get(SERVING_LABEL) == "true"),
        is_serving=labels.get(SERVING_LABEL) == "true",
        is_terminating="deletionTimestamp" in metadata or status.get("phase") in ("Succeeded", "Failed"),
        is_running="running" in container.get("state", {}),
        deletion_cost=int(annotations.get(DELETION_COST_ANNOTATION, "0")),
        trouble=_trouble(status, init or container),
        is_fetching=_is_fetching(init),
        is_protected=PROTECTED_ANNOTATION in annotations,
        scheduled_at=_scheduled_at(metadata, status, container),
        num_restarts=container.get("restartCount", 0),
        has_ended=status.get("phase") in ("Succeeded", "Failed"),
        drain_token_sha256=_drain_tokens(pod),
        node=pod.get("spec", {}).get("nodeName", ""),
        timeline=read_timeline(status),
        ending=_ending(metadata, status, container),
    )


def read_inspection(job: Manifest, pods: tuple[Manifest, ...]) -> Inspection:
    """Facts of an inspection Job; its pod is found by the Job controller's label."""
    name, status = job["metadata"]["name"], job.get("status", {})
    finished = [
        condition
        for condition in status.get("conditions", ())
        if condition["type"] in ("Complete", "Failed") and condition["status"] == "True"
    ]
    pod = next((pod for pod in pods if pod["metadata"].get("labels", {}).get("job-name") == name), {})
    container = main_status(pod.get("status", {}))
    failed: Manifest = next((condition for condition in finished if condition["type"] == "Failed"), {})
    ended = container.get("state", {}).get("terminated", {})
    times = [condition["lastTransitionTime"] for condition in finished] or [ended.get("finishedAt")]
    return Inspection(
        name=name,
        uid=job["metadata"]["uid"],
        attempt=int(name.rpartition("-")[2]),
        is_finished=bool(finished or ended),
        finished_at=_optional_time(times[0]),
        failure=failed.get("message", ""),
        termination=_termination(container.get("state", {})),
        trouble=_trouble(pod.get("status", {}), unfinished_init(pod) or container),
        created_at=read_time(job["metadata"]["creationTimestamp"]),
        has_pod=bool(pod),
        is_running="running" in container.get("state", {}),
    )


def read_node(node: Manifest) -> Node:
    spec = node.get("spec", {})
    taints = [Taint(each["key"], each.get("value", ""), each["effect"]) for each in spec.get("taints", ())]
    of_condition = [taint for taint in taints if taint.key.startswith(_CONDITION_TAINTS)]
    is_cordoned = spec.get("unschedulable", False)
    return Node(
        name=node["metadata"]["name"],
        labels=node["metadata"].get("labels", {}),
        allocatable=node.get("status", {}).get("allocatable", {}),
        taints=tuple(taint for taint in taints if taint not in of_condition),
        is_cordoned=is_cordoned,
        is_schedulable=not is_cordoned and not any(taint.effect != "PreferNoSchedule" for taint in of_condition),
    )


def read_deployment(deployment: Manifest, desired_annotation: str) -> DeploymentFacts:
    metadata, spec, status = deployment["metadata"], deployment["spec"], deployment.get("status", {})
    num_updated, num_live = status.get("updatedReplicas", 0), status.get("replicas", 0)
    desired = metadata.get("annotations", {}).get(desired_annotation, "")
    failure = _condition(status, "ReplicaFailure")
    return DeploymentFacts(
        num_replicas=spec.get("replicas", 1),
        num_desired=int(desired) if desired.isdecimal() and len(desired) <= _MAX_DIGITS else None,
        template=spec["template"]["metadata"].get("labels", {}).get(TEMPLATE_LABEL, ""),
        num_updated=num_updated,
        num_live=num_live,
        is_settled=status.get("observedGeneration", 0) >= metadata["generation"] and num_updated == num_live,
        refusal=failure.get("message", "") if failure.get("status") == "True" else "",
        refused_since=_optional_time(failure.get("lastTransitionTime")) if failure.get("status") == "True" else None,
        retried=metadata.get("annotations", {}).get(RETRIED_ANNOTATION, ""),
        is_paused=spec.get("paused", False),
    )


def _ending(metadata: Manifest, status: Manifest, container: Manifest) -> Ending | None:
    if status.get("phase") != "Failed" or "deletionTimestamp" in metadata:
        return None
    ended = container.get("state", {}).get("terminated", {})
    times = [each.get("lastTransitionTime") for each in status.get("conditions", ())] + [ended.get("finishedAt")]
    at = max([read_time(text) for text in times if text] or [read_time(metadata["creationTimestamp"])])
    reason = status.get("reason") or ended.get("reason") or "Failed"
    return Ending(reason, (status.get("message") or ended.get("message") or "").strip(), at)


def read_time(text: str) -> datetime:
    """RFC 3339 as Kubernetes writes it."""
    return datetime.fromisoformat(text)


def _draining_since(metadata: Manifest, *, is_serving: bool) -> datetime | None:
    """Our mark on a pod.

    People edit pods: one out of the Service without a readable mark counts as draining, so that it is put back or goes.
    """
    marked = metadata.get("annotations", {}).get(DRAINING_SINCE_ANNOTATION)
    if marked is None and is_serving:
        return None
    try:
        since = read_time(marked or "")
    except ValueError:
        return read_time(metadata["creationTimestamp"])
    return since if since.tzinfo else since.replace(tzinfo=UTC)


def _scheduled_at(metadata: Manifest, status: Manifest, container: Manifest) -> datetime | None:
    """When it got its node; a container that runs has one, whoever wrote its status."""
    scheduled = _condition(status, "PodScheduled")
    if scheduled.get("status") == "True":
        return _since(scheduled, metadata)
    return read_time(metadata["creationTimestamp"]) if container and not scheduled else None


def _drain_tokens(pod: Manifest) -> tuple[str, ...]:
    """From the engine's arguments."""
    args = main_container(pod).get("args", ())
    return tuple(arg.removeprefix(DRAIN_TOKEN_OPTION) for arg in args if arg.startswith(DRAIN_TOKEN_OPTION))


def _since(condition: Manifest, metadata: Manifest) -> datetime:
    """A kubelet of another kind may leave the time out; the pod's creation is never too late."""
    return read_time(condition.get("lastTransitionTime") or metadata["creationTimestamp"])


def _optional_time(text: str | None) -> datetime | None:
    return None if text is None else read_time(text)


def _condition(status: Manifest, kind: str) -> Manifest:
    return next((condition for condition in status.get("conditions", ()) if condition["type"] == kind), {})


def _is_fetching(init: Manifest | None) -> bool:
    return init is not None and init.get("name") == DOWNLOAD_CONTAINER and "running" in init.get("state", {})


def _termination(state: Manifest) -> Termination | None:
    ended = state.get("terminated")
    if ended is None:
        return None
    return Termination(int(ended["exitCode"]), ended.get("reason", ""), ended.get("message", "").strip())


def _trouble(status: Manifest, container: Manifest) -> Trouble | None:
    """`container`: the one that the pod is at, which for an engine's is an init container first."""
    scheduled = _condition(status, "PodScheduled")
    if scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable":
        return Trouble(Reason.UNSCHEDULABLE, scheduled.get("message", ""))
    waiting = container.get("state", {}).get("waiting", {})
    if waiting.get("reason") in _IMAGE_TROUBLES:
        return Trouble(Reason.IMAGE_UNAVAILABLE, _image_words(waiting["reason"], waiting.get("message", "")))
    if waiting.get("reason") in ("CreateContainerConfigError", "CreateContainerError"):
        return Trouble(Reason.ENGINE_FAILING, f"{waiting['reason']}: {waiting.get('message', '')}")
    if container.get("ready"):
        return None  # an engine that was restarted after a failure is in trouble until it serves
    now, before = _termination(container.get("state", {})), _termination(container.get("lastState", {}))
    if ended := now or before:
        return _failure(ended) if ended.exit_code != 0 else _STOPPED if before else None
    return None


def _image_words(reason: str, message: str) -> str:
    """The same whether the kubelet has just tried or waits: it goes to and fro, and a status that did so is written."""
    _, is_repeated, cause = message.partition(f": {_PULL_FAILED}: ")
    return f"{_PULL_FAILED}: {cause}" if is_repeated else f"{reason}: {message}"


def _failure(ended: Termination) -> Trouble:
    if ended.reason == "OOMKilled" or ended.exit_code == _OUT_OF_MEMORY_EXIT:
        return Trouble(Reason.OUT_OF_MEMORY, "the kernel killed the engine: it used more than its memory limit")
    words = ended.last_words()
    if words and (by_hub := [reason for reason in HUB_REASONS if reason == words.reason]):
        return Trouble(by_hub[0], words.message)
    said = f"{words.reason}: {words.message}" if words else ended.message[-500:]
    return Trouble(Reason.ENGINE_FAILING, f"the engine ended with exit code {ended.exit_code}: {said}".rstrip(": "))
