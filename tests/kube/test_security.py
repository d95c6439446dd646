"""What guards pods, on a real API server: the restricted profile, the NetworkPolicy, and marks for node autoscalers."""

import json
from typing import Any

from kubelet import Kubelet
from operator_process import OperatorUnderTest
from pool_cases import AFFINITY
from pools import pool_manifest
from tidegate_operator.decisions.protection import DO_NOT_DISRUPT
from waiting import eventually

PEER = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "tidegate"}}}
POD = {
    "affinity": AFFINITY,
    "runtimeClassName": "gpus",
    "imagePullSecrets": [{"name": "registry"}],
    "env": [{"name": "HTTPS_PROXY", "valueFrom": {"secretKeyRef": {"name": "proxy", "key": "url"}}}],
    "annotations": {"team": "a"},
}
RUNTIME_CLASS = {
    "apiVersion": "node.k8s.io/v1",
    "kind": "RuntimeClass",
    "metadata": {"name": "gpus"},
    "handler": "gpus",
}


def annotations(operator: OperatorUnderTest) -> list[dict[str, str]]:
    return [pod["metadata"].get("annotations", {}) for pod in operator.engine_pods()]


def policies(operator: OperatorUnderTest) -> list[dict[str, Any]]:
    return list(operator.get("networkpolicies"))


def test_a_pool_in_a_restricted_namespace_is_guarded_and_settles(
    stopped_operator: OperatorUnderTest, nodes: Kubelet
) -> None:
    operator, kubectl = stopped_operator, stopped_operator.access.kubectl
    kubectl("label", "namespace", operator.namespace, "pod-security.kubernetes.io/enforce=restricted")
    kubectl("apply", "-f", "-", input=json.dumps(RUNTIME_CLASS))
    operator.settings["TIDEGATE_ADMIN_PEERS"] = json.dumps([PEER])
    nodes.becomes_ready = False
    operator.start()
    operator.apply(pool_manifest(pod=POD))

    loading = DO_NOT_DISRUPT | {"tidegate.dev/protected": "true", "team": "a"}
    eventually(lambda: annotations(operator) == [loading], what="the replica that loads is protected")
    (policy,) = policies(operator)
    assert policy["spec"]["ingress"][1] == {"from": [PEER], "ports": [{"port": 8001, "protocol": "TCP"}]}
    (template,) = (each["spec"]["template"]["spec"] for each in operator.get("deployments"))
    assert template["affinity"] == AFFINITY

    nodes.becomes_ready = True
    eventually(lambda: operator.is_condition("Ready", "True"))
    eventually(lambda: annotations(operator) == [{"team": "a"}], what="the replica that serves holds no node")
    operator.assert_quiescent()

    operator.stop()
    del operator.settings["TIDEGATE_ADMIN_PEERS"]
    operator.start()
    eventually(lambda: not policies(operator), what="the policy goes with the setting")
    operator.assert_quiescent()
