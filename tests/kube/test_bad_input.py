"""What a pool says when it cannot be: each fault in its own condition, with what to do, and nothing deployed for it."""

import json

import pytest

from kubelet import Ending, Kubelet
from operator_process import OperatorUnderTest
from pools import CLAIM, pool_manifest
from tidegate_core.termination import ExitCode, TerminationMessage
from waiting import eventually


def ending(code: ExitCode, reason: str, message: str) -> Ending:
    return Ending(code, TerminationMessage(reason=reason, message=message).encode())


def events(operator: OperatorUnderTest, reason: str) -> list[dict]:
    return [event for event in operator.get("events.events.k8s.io") if event["reason"] == reason]


def test_a_model_that_does_not_fit_deploys_nothing_and_names_numbers_and_remedies(operator: OperatorUnderTest) -> None:
    operator.apply(pool_manifest(accelerator={"memory": "12Gi", "count": 1}))
    eventually(lambda: operator.is_condition("Fits", "False"))
    fits = operator.condition("Fits")
    assert fits["reason"] == "DoesNotFit"
    assert "GiB" in fits["message"]
    assert "What would help:" in fits["message"]
    status = operator.pool()["status"]
    assert status["sizing"]["fits"] is False
    assert status["sizing"]["remedies"]
    assert operator.is_condition("Stalled", "True")
    assert not operator.get("deployments")
    assert events(operator, "DoesNotFit")[0]["type"] == "Warning"
    operator.assert_quiescent()


def test_a_pool_that_stops_fitting_keeps_its_last_good_template(operator: OperatorUnderTest) -> None:
    operator.apply(pool_manifest())
    eventually(lambda: operator.is_condition("Ready", "True"))
    template = operator.get("deployment", "chat")["spec"]["template"]
    operator.apply(pool_manifest(accelerator={"memory": "12Gi", "count": 1}))
    eventually(lambda: operator.is_condition("Stalled", "True"))
    assert operator.get("deployment", "chat")["spec"]["template"] == template
    assert operator.is_condition("Available", "True")
    operator.assert_quiescent()


def test_a_flag_that_is_refused_leaves_what_serves_and_its_correction_replaces_it(operator: OperatorUnderTest) -> None:
    operator.apply(pool_manifest())
    eventually(lambda: operator.is_condition("Ready", "True"))
    template = operator.get("deployment", "chat")["spec"]["template"]
    operator.apply(pool_manifest(engine={"extraArgs": ["--prefix-cache=off", "--port=80"]}))
    eventually(lambda: operator.is_condition("Stalled", "True"))
    stalled = operator.condition("Stalled")
    assert stalled["reason"] == "EngineArgsRefused"
    assert "--port is the operator's own; leave it out; 1 replica goes on serving" in stalled["message"]
    assert operator.get("deployment", "chat")["spec"]["template"] == template
    operator.apply(pool_manifest(engine={"extraArgs": ["--prefix-cache=off"]}))
    eventually(lambda: operator.get("deployment", "chat")["spec"]["template"] != template)
    eventually(lambda: operator.is_condition("Ready", "True"))
    assert (
        "--prefix-cache=off" in operator.get("deployment", "chat")["spec"]["template"]["spec"]["containers"][0]["args"]
    )
    operator.assert_quiescent()


@pytest.mark.parametrize(
    ("ended", "reason", "is_stalled"),
    [
        pytest.param(
            ending(ExitCode.MODEL_UNREACHABLE, "ModelNotFound", "/models/qwen does not exist"),
            "ModelNotFound", False, id="missing",
        ),
        pytest.param(
            ending(ExitCode.MODEL_UNSUPPORTED, "ModelCorrupt", "model.safetensors is truncated"),
            "ModelCorrupt", False, id="truncated",
        ),
        pytest.param(
            ending(ExitCode.MODEL_UNSUPPORTED, "ModelUnsupported", "architecture FooForCausalLM"),
            "ModelUnsupported", True, id="unknown architecture",
        ),
        pytest.param(Ending(137, ""), "InspectionFailed", False, id="killed"),
    ],
)  # fmt: skip
def test_a_model_that_cannot_be_read_is_named_with_its_fault(
    operator: OperatorUnderTest, nodes: Kubelet, ended: Ending, reason: str, is_stalled: bool
) -> None:
    nodes.ending = ended
    operator.apply(pool_manifest())
    eventually(lambda: operator.condition("ModelResolved").get("reason") == reason)
    resolved = operator.condition("ModelResolved")
    assert resolved["status"] == "False"
    assert "pvc://models/qwen" in resolved["message"]
    assert operator.is_condition("Stalled", "True") is is_stalled
    assert not operator.get("deployments")
    operator.assert_quiescent("inferencepools")  # its Jobs go on where another try can help


def test_a_model_that_appears_later_is_found_by_the_next_try(operator: OperatorUnderTest, nodes: Kubelet) -> None:
    good = nodes.ending
    nodes.ending = ending(ExitCode.MODEL_UNREACHABLE, "ModelNotFound", "/models/qwen does not exist")
    operator.apply(pool_manifest())
    eventually(lambda: operator.condition("ModelResolved").get("reason") == "ModelNotFound")
    nodes.ending = good
    eventually(lambda: operator.is_condition("Ready", "True"), timeout_seconds=40)
    eventually(lambda: not operator.get("jobs"), what="inspection Jobs are gone")
    operator.assert_quiescent()


def test_a_missing_claim_is_named_and_its_creation_is_enough(operator: OperatorUnderTest) -> None:
    operator.access.kubectl("delete", "pvc", "models", "-n", operator.namespace)
    operator.apply(pool_manifest())
    eventually(lambda: operator.condition("ModelResolved").get("reason") == "ClaimNotFound")
    assert "models" in operator.condition("ModelResolved")["message"]
    assert not operator.get("jobs")
    operator.apply(CLAIM)
    eventually(lambda: operator.is_condition("Ready", "True"))
    operator.assert_quiescent()


def test_an_object_of_a_stranger_is_not_taken_over(operator: OperatorUnderTest) -> None:
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "chat"}, "spec": {"ports": [{"port": 80}]}}
    operator.apply(service)
    operator.apply(pool_manifest())
    eventually(lambda: operator.condition("Stalled").get("reason") == "ChildNotOurs")
    assert "Service chat" in operator.condition("Stalled")["message"]
    assert not operator.get("deployments")
    assert "ownerReferences" not in operator.get("service", "chat")["metadata"]
    operator.assert_quiescent()
    operator.access.kubectl("delete", "service", "chat", "-n", operator.namespace)
    eventually(lambda: operator.is_condition("Ready", "True"), timeout_seconds=30)
    operator.assert_quiescent()


def test_a_pod_that_the_api_server_refuses_is_stalled_with_its_answer(operator: OperatorUnderTest) -> None:
    resources = {"requests": {"memory": "8Gi"}, "limits": {"memory": "4Gi"}}
    operator.apply(pool_manifest(pod={"resources": resources}))
    eventually(lambda: operator.condition("Stalled").get("reason") == "ApplyFailed")
    assert "memory" in operator.condition("Stalled")["message"]
    operator.assert_quiescent()


def test_a_template_that_the_api_server_refuses_does_not_keep_the_old_one_from_scaling(
    operator: OperatorUnderTest,
) -> None:
    operator.apply(pool_manifest(scaling={"mode": "Manual"}))
    eventually(lambda: operator.is_condition("Ready", "True"))
    template = operator.get("deployment", "chat")["spec"]["template"]
    resources = {"requests": {"memory": "8Gi"}, "limits": {"memory": "4Gi"}}
    operator.apply(pool_manifest(scaling={"mode": "Manual"}, replicas=2, pod={"resources": resources}))
    eventually(lambda: operator.condition("Stalled").get("reason") == "ApplyFailed")
    eventually(lambda: operator.pool()["status"]["ready"] == "2/2")
    assert operator.get("deployment", "chat")["spec"]["template"] == template
    assert not operator.exists("controllerrevision", "chat-2"), "a template that cannot be is not remembered"
    operator.assert_quiescent()
    operator.apply(pool_manifest(scaling={"mode": "Manual"}, replicas=2))
    eventually(lambda: operator.is_condition("Ready", "True"))
    operator.assert_quiescent()


def test_engines_that_fail_show_their_last_words(operator: OperatorUnderTest, nodes: Kubelet) -> None:
    nodes.starts_engines = False
    operator.apply(pool_manifest())
    pod = eventually(lambda: operator.get("pods", selector="tidegate.dev/role=engine"))[0]["metadata"]["name"]
    words = TerminationMessage(reason="OutOfMemory", message="the KV cache does not fit").encode()
    state = {"waiting": {"reason": "CrashLoopBackOff"}}
    last = {"terminated": {"exitCode": 4, "message": words, "reason": "Error"}}
    container = {"name": "engine", "image": "e", "imageID": "", "ready": False, "restartCount": 2, "state": state,
                 "lastState": last}  # fmt: skip
    status = {"status": {"phase": "Running", "containerStatuses": [container]}}
    operator.access.kubectl(
        "patch", "pod", pod, "-n", operator.namespace, "--subresource=status", "-p", json.dumps(status)
    )
    eventually(lambda: operator.condition("Progressing").get("reason") == "EngineFailing")
    assert "the KV cache does not fit" in operator.condition("Progressing")["message"]
    operator.assert_quiescent()
