"""What a pod's status says about why it does not come up: in the words of whoever knows."""

from datetime import datetime
from typing import Any

import pytest

from tidegate_core.termination import ExitCode, TerminationMessage
from tidegate_operator.api.reasons import Reason
from tidegate_operator.world.observed import Pod, Trouble
from tidegate_operator.world.readers import read_deployment, read_pod

WORDS = TerminationMessage(reason="DoesNotFit", message="the KV cache needs 9 GiB").encode()


def trouble(container: dict[str, Any] | None = None, *conditions: dict[str, Any]) -> Trouble | None:
    metadata = {"name": "chat-a", "uid": "u", "creationTimestamp": "2026-11-29T12:00:00Z"}
    containers = [{"name": "engine", **container}] if container else []
    return read_pod(
        {"metadata": metadata, "status": {"conditions": list(conditions), "containerStatuses": containers}}
    ).trouble


def ended(exit_code: int, reason: str = "Error", message: str = "") -> dict[str, Any]:
    return {"terminated": {"exitCode": exit_code, "reason": reason, "message": message}}


def crash_loop(last: dict[str, Any]) -> dict[str, Any]:
    return {"ready": False, "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": last}


@pytest.mark.parametrize("last", [ended(137, "OOMKilled"), ended(137), ended(1, "OOMKilled")])
def test_an_engine_that_the_kernel_killed_is_out_of_memory_also_between_its_restarts(last: dict[str, Any]) -> None:
    for found in (trouble({"state": last}), trouble(crash_loop(last))):
        assert found is not None
        assert found.reason is Reason.OUT_OF_MEMORY
        assert "memory limit" in found.message


def test_an_engine_that_ended_by_itself_is_quoted() -> None:
    found = trouble(crash_loop(ended(ExitCode.DOES_NOT_FIT, message=WORDS)))
    assert found is not None
    assert found.reason is Reason.ENGINE_FAILING
    assert "DoesNotFit: the KV cache needs 9 GiB" in found.message


def test_without_last_words_the_end_of_the_log_is_shown() -> None:
    found = trouble({"state": ended(1, message="x" * 5000 + "ImportError: no module named torch")})
    assert found is not None
    assert found.message.endswith("ImportError: no module named torch")
    assert len(found.message) < 600


def test_a_pod_that_finds_no_node_has_the_schedulers_words() -> None:
    words = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": words}
    assert trouble(None, condition) == Trouble(Reason.UNSCHEDULABLE, words)


@pytest.mark.parametrize("reason", ["ErrImagePull", "ImagePullBackOff", "InvalidImageName"])
def test_an_image_that_does_not_come_is_named(reason: str) -> None:
    found = trouble({"state": {"waiting": {"reason": reason, "message": "engine:2 not found"}}})
    assert found == Trouble(Reason.IMAGE_UNAVAILABLE, f"{reason}: engine:2 not found")


def test_the_words_about_an_image_stay_while_the_kubelet_tries_and_waits_by_turns() -> None:
    cause = "failed to pull and unpack image: engine:2: not found"
    tried = {"reason": "ErrImagePull", "message": cause}
    waits = {"reason": "ImagePullBackOff", "message": f'Back-off pulling image "engine:2": ErrImagePull: {cause}'}
    first, then = (trouble({"state": {"waiting": waiting}}) for waiting in (tried, waits))
    assert first == then == Trouble(Reason.IMAGE_UNAVAILABLE, f"ErrImagePull: {cause}")


def test_an_engine_that_serves_again_is_in_no_trouble() -> None:
    assert trouble({"ready": True, "state": {"running": {}}, "lastState": ended(137, "OOMKilled")}) is None
    assert trouble({"ready": False, "state": {"running": {}}, "lastState": {}}) is None


def marked(serving: str, since: str | None) -> Pod:
    annotations = {} if since is None else {"tidegate.dev/draining-since": since}
    metadata = {
        "name": "chat-a", "uid": "u", "creationTimestamp": "2026-11-29T12:00:00Z", "annotations": annotations,
        "labels": {"tidegate.dev/serving": serving},
    }  # fmt: skip
    return read_pod({"metadata": metadata, "status": {}})


@pytest.mark.parametrize(
    ("serving", "since", "draining_since"),
    [
        ("true", None, None),
        ("false", "2026-11-29T13:00:00+00:00", "2026-11-29T13:00:00+00:00"),
        ("false", "2026-11-29T13:00:00", "2026-11-29T13:00:00+00:00"),
        ("false", None, "2026-11-29T12:00:00+00:00"),
        ("false", "yesterday", "2026-11-29T12:00:00+00:00"),
        ("true", "", "2026-11-29T12:00:00+00:00"),
    ],
)
def test_a_pod_out_of_the_service_drains_since_its_mark_or_where_that_is_garbled_since_ever(
    serving: str, since: str | None, draining_since: str | None
) -> None:
    expected = None if draining_since is None else datetime.fromisoformat(draining_since)
    assert marked(serving, since).draining_since == expected


@pytest.mark.parametrize("desired", ["", "many", "-1", "\u00b2", "9" * 5000])
def test_a_desired_size_that_a_person_garbled_counts_as_none(desired: str) -> None:
    deployment = {
        "metadata": {"generation": 1, "annotations": {"desired": desired}},
        "spec": {"replicas": 2, "template": {"metadata": {}}},
    }
    assert read_deployment(deployment, "desired").num_desired is None


def test_an_engine_that_the_kubelet_stopped_for_its_probes_is_in_trouble_until_it_serves() -> None:
    found = trouble(crash_loop(ended(0, "Completed")))
    assert found is not None
    assert found.reason is Reason.ENGINE_FAILING
    assert "probe" in found.message
    assert trouble({"ready": True, "state": {"running": {}}, "lastState": ended(0, "Completed")}) is None
    assert trouble({"state": ended(0, "Completed")}) is None, "an inspection that is done"


def beside_others(engine: dict[str, Any], *, injects_first: bool, is_mesh_up: bool = True) -> Pod:
    """A pod into which a webhook put a container, and a service mesh a sidecar."""
    metadata = {"name": "chat-a", "uid": "u", "creationTimestamp": "2026-11-29T12:00:00Z"}
    ours = {"name": "engine", "args": ["serve", "/models/qwen", "--drain-token-sha256=ab"]}
    agent = {"name": "agent", "args": ["run"]}
    containers = [agent, ours] if injects_first else [ours, agent]
    inits = [{"name": "mesh", "restartPolicy": "Always"}, {"name": "download"}]
    running: dict[str, Any] = {"ready": True, "state": {"running": {"startedAt": "2026-11-29T12:00:10Z"}}}
    mesh = {"started": True, **running} if is_mesh_up else {"started": False, "ready": False, **running}
    status = {
        "initContainerStatuses": [{"name": "mesh", **mesh}, {"name": "download", "state": ended(0)}],
        "containerStatuses": [{"name": "agent", "restartCount": 7, **running}, {"name": "engine", **engine}],
    }
    spec = {"containers": containers, "initContainers": inits}
    return read_pod({"metadata": metadata, "spec": spec, "status": status})


@pytest.mark.parametrize("injects_first", [True, False])
def test_an_engine_is_found_among_the_containers_that_others_put_into_its_pod(injects_first: bool) -> None:
    started = {"running": {"startedAt": "2026-11-29T12:00:20Z"}}
    serving = beside_others({"ready": True, "restartCount": 1, "state": started}, injects_first=injects_first)
    assert (serving.is_running, serving.is_fetching, serving.trouble, serving.num_restarts) == (True, False, None, 1)
    assert serving.timeline.started_at == datetime.fromisoformat("2026-11-29T12:00:20Z")
    assert serving.drain_token_sha256 == ("ab",)


def test_sidecars_that_run_do_not_hide_that_the_engine_fails() -> None:
    failing = beside_others(crash_loop(ended(137, "OOMKilled")), injects_first=False)
    assert failing.trouble is not None
    assert failing.trouble.reason is Reason.OUT_OF_MEMORY
    assert not failing.is_running


def test_a_pod_that_waits_for_a_mesh_fetches_nothing() -> None:
    waiting = {"state": {"waiting": {"reason": "PodInitializing"}}}
    pod = beside_others(waiting, injects_first=False, is_mesh_up=False)
    assert (pod.is_running, pod.is_fetching, pod.trouble) == (False, False, None)


def test_a_condition_without_a_time_holds_since_the_pod_was_made() -> None:
    made = "2026-11-29T12:00:00Z"
    conditions = [{"type": kind, "status": "True", "lastTransitionTime": None} for kind in ("Ready", "PodScheduled")]
    metadata = {"name": "a", "uid": "u", "creationTimestamp": made}
    pod = read_pod({"metadata": metadata, "status": {"conditions": conditions}})
    assert (pod.ready_since, pod.scheduled_at) == (datetime.fromisoformat(made), datetime.fromisoformat(made))
