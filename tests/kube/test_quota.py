"""A quota on a real API server, which counts the pods: the scaler stops at it, says so, and goes on once it may."""

import json
from typing import Any

from fake_engines import FakeEngines
from operator_process import OperatorUnderTest
from pools import pool_manifest
from tidegate_operator.labels import RETRIED_ANNOTATION
from waiting import eventually

AUTO = {"minReplicas": 1, "maxReplicas": 2, "scaling": {"mode": "Auto", "scaleDownHoldSeconds": 300}}
TRIES_LATER = 11  # it has waited for 10 s in all, and now waits as long for the next
BUSY = {"running": 8, "waiting": 20, "eta_seconds": 40.0, "arrivals": 30}


def allow(operator: OperatorUnderTest, num_gpus: int) -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "gpus"},
        "spec": {"hard": {"requests.nvidia.com/gpu": str(num_gpus)}},
    }
    operator.access.kubectl("apply", "-n", operator.namespace, "-f", "-", input=json.dumps(quota))


def test_an_overloaded_pool_stops_at_its_namespaces_quota_and_grows_once_that_is_raised(
    operator: OperatorUnderTest, engines: FakeEngines
) -> None:
    allow(operator, 1)
    operator.apply(pool_manifest(**AUTO))
    eventually(lambda: operator.is_condition("Ready", "True"), timeout_seconds=60)
    (engine,) = engines.by_pod.values()
    engine.set_load(**BUSY)
    eventually(lambda: operator.condition("ScalingLimited").get("reason") == "QuotaExceeded", timeout_seconds=60)
    said = operator.condition("ScalingLimited")["message"]
    assert "ResourceQuota gpus allows requests.nvidia.com/gpu 1, 1 is used and a replica asks for 1" in said
    assert operator.get("deployment", "chat")["spec"]["replicas"] == 1
    operator.assert_quiescent()

    allow(operator, 2)
    eventually(lambda: operator.pool()["status"].get("ready") == "2/2", timeout_seconds=90)


def bind(operator: OperatorUnderTest, pod: dict[str, Any]) -> None:
    """To a node, so that its end takes its grace and it holds its share of the quota until then."""
    name = pod["metadata"]["name"]
    path = f"/api/v1/namespaces/{operator.namespace}/pods/{name}/binding"
    binding = {
        "apiVersion": "v1", "kind": "Binding", "metadata": {"name": name},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "a-node"},
    }  # fmt: skip
    operator.access.kubectl("create", "--raw", path, "-f", "-", input=json.dumps(binding))


def num_refusals(operator: OperatorUnderTest) -> int:
    """How often the ReplicaSet has tried; twice as long after each."""
    events = [each for each in operator.get("events") if each["reason"] == "FailedCreate"]
    return sum(max(each.get("deprecatedCount", 1), each.get("series", {}).get("count", 1)) for each in events)


def let_go(operator: OperatorUnderTest) -> bool:
    """What a kubelet does at the end of a pod. Whether there was one that leaves."""
    leaving = [pod for pod in operator.engine_pods() if "deletionTimestamp" in pod["metadata"]]
    for pod in leaving:
        name = pod["metadata"]["name"]
        operator.access.kubectl("delete", "pod", name, "-n", operator.namespace, "--grace-period=0", "--force")
    return bool(leaving)


def test_a_rollout_in_a_full_quota_goes_on_as_soon_as_an_old_replica_has_left(
    operator: OperatorUnderTest, engines: FakeEngines
) -> None:
    two = {"replicas": 2, "scaling": {"mode": "Manual"}}
    allow(operator, 2)
    operator.apply(pool_manifest(**two))
    eventually(lambda: operator.is_condition("Ready", "True"), timeout_seconds=60)
    for pod in operator.engine_pods():
        bind(operator, pod)
    operator.apply(pool_manifest(**two, context={"max": 2048, "min": 1024}))
    eventually(lambda: num_refusals(operator) >= TRIES_LATER, timeout_seconds=60, what="the next try is far away")
    let_go(operator)
    eventually(lambda: RETRIED_ANNOTATION in operator.get("deployment", "chat")["metadata"]["annotations"])
    eventually(lambda: len(operator.engine_pods()) == 2, what="a new replica in its place")
    said = operator.get("deployment", "chat")["metadata"]["annotations"][RETRIED_ANNOTATION]
    assert "ResourceQuota gpus allows requests.nvidia.com/gpu 2, 1 is used and a replica asks for 1" in said
    eventually(lambda: let_go(operator), timeout_seconds=60)
    eventually(lambda: operator.is_condition("Ready", "True"), timeout_seconds=60)
    operator.assert_quiescent()
