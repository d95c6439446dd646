"""A quota on a real API server, which counts the pods: the scaler stops at it, says so, and goes on once it may."""

import json

from fake_engines import FakeEngines
from operator_process import OperatorUnderTest
from pools import pool_manifest
from waiting import eventually

AUTO = {"minReplicas": 1, "maxReplicas": 2, "scaling": {"mode": "Auto", "scaleDownHoldSeconds": 300}}
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
