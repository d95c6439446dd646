"""Models of a hub and of images on a real API server: what is applied is accepted, settles, and goes or stays."""

import json

from hub_pools import COMMIT, TOKEN, found, hub_manifest
from kubelet import Ending, Kubelet
from operator_process import OperatorUnderTest
from pools import pool_manifest
from tidegate_core.termination import ExitCode, TerminationMessage
from waiting import eventually


def reason(operator: OperatorUnderTest, kind: str) -> str:
    return str(operator.condition(kind).get("reason", ""))


def test_a_gated_model_is_named_then_fetched_into_a_claim_that_outlives_the_pool(
    stopped_operator: OperatorUnderTest, nodes: Kubelet
) -> None:
    operator = stopped_operator
    gated = TerminationMessage(reason="ModelGated", message="Qwen/Qwen3-8B is gated: accept its terms").encode()
    nodes.ending = Ending(ExitCode.ACCESS_DENIED, gated)
    operator.start()
    operator.apply(hub_manifest(cache={"retain": True}))
    eventually(lambda: reason(operator, "ModelResolved") == "ModelGated")
    assert reason(operator, "Ready") == "ModelGated"
    nodes.ending, nodes.download_ending = Ending(0, found()), Ending(0, f"Qwen/Qwen3-8B@{COMMIT}")
    operator.apply(hub_manifest(cache={"retain": True}, model={"revision": "v1"}))
    eventually(lambda: operator.is_condition("Ready", "True"), timeout_seconds=60)
    assert operator.pool()["status"]["model"]["revision"] == COMMIT
    assert reason(operator, "ModelCached") == "ModelCached"
    claim = operator.get("persistentvolumeclaims", "chat-models")
    assert claim["metadata"]["annotations"]["tidegate.dev/holds"] == f"Qwen/Qwen3-8B@{COMMIT}"
    assert "ownerReferences" not in claim["metadata"]
    operator.assert_quiescent()
    operator.access.kubectl("delete", "inferencepools.tidegate.dev", "chat", "-n", operator.namespace)
    eventually(lambda: not operator.exists("deployment", "chat"))
    operator.apply(hub_manifest(cache={"retain": False}))
    eventually(lambda: operator.is_condition("Ready", "True"), timeout_seconds=60)
    claim = operator.get("persistentvolumeclaims", "chat-models")
    assert claim["metadata"]["ownerReferences"][0]["kind"] == "InferencePool", "from now on it goes with the pool"
    assert not operator.get("jobs", selector="tidegate.dev/role=download"), "what was on it counts"
    operator.assert_quiescent()


def test_pods_that_fetch_and_pods_of_an_image_are_accepted_by_the_api_server(
    stopped_operator: OperatorUnderTest, nodes: Kubelet
) -> None:
    operator = stopped_operator
    operator.access.kubectl(
        "label", "namespace", operator.namespace, "pod-security.kubernetes.io/enforce=restricted", "--overwrite"
    )
    nodes.ending = Ending(0, found())
    operator.start()
    operator.apply(hub_manifest())
    eventually(lambda: operator.is_condition("Ready", "True"), timeout_seconds=60)
    spec = operator.get("deployment", "chat")["spec"]["template"]["spec"]
    assert [each["name"] for each in spec["initContainers"]] == ["download"]
    assert json.dumps(spec["containers"]).count(TOKEN["name"] + '"') == 0
    operator.assert_quiescent()
    operator.apply(pool_manifest(model={"uri": "oci://registry.example/qwen:1#model", "pullPolicy": "IfNotPresent"}))
    eventually(lambda: "image" in str(operator.get("deployment", "chat")["spec"]["template"]["spec"]["volumes"][0]))
    image = operator.get("deployment", "chat")["spec"]["template"]["spec"]["volumes"][0]["image"]
    assert image == {"reference": "registry.example/qwen:1", "pullPolicy": "IfNotPresent"}
    eventually(lambda: operator.is_condition("Ready", "True"), timeout_seconds=60)
    operator.assert_quiescent()
