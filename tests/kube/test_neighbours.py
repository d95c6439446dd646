"""Autoscalers, endpoint pools and monitors beside a pool, on a real API server with Kubernetes' own HPA controller."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.api_server import ApiServer
from e2e.installation.crds import wait_for_crds
from kubelet import Kubelet
from neighbour_crds import NEIGHBOURS
from operator_process import OperatorUnderTest
from pools import pool_manifest
from tidegate_operator.errors import NotFound
from tidegate_operator.resources import AUTOSCALER, GIE_POOL, POD_MONITOR, Manifest, Resource
from waiting import eventually

POOL_TARGET = {"apiVersion": "tidegate.dev/v1alpha1", "kind": "InferencePool", "name": "chat"}
MANUAL = {"scaling": {"mode": "Manual"}}


@pytest.fixture
def neighbours(api_server: ApiServer) -> Iterator[None]:
    """Their APIs exist for one test: with them `inferencepools` alone would be ambiguous in others."""
    items = {"apiVersion": "v1", "kind": "List", "items": list(NEIGHBOURS)}
    api_server.kubectl("apply", "--server-side", "-f", "-", input=json.dumps(items))
    names = [f"crd/{each['metadata']['name']}" for each in NEIGHBOURS]
    wait_for_crds(api_server, *(name.removeprefix("crd/") for name in names))
    yield
    api_server.kubectl("delete", *names, "--wait=true", "--timeout=60s")


def scaler(target: dict[str, str], name: str = "by-queue") -> Manifest:
    """As docs/neighbours.md shows it, over a metric that nobody serves here."""
    metric = {"metric": {"name": "tidegate_requests_waiting"}, "target": {"type": "AverageValue", "averageValue": "8"}}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": name},
        "spec": {
            "scaleTargetRef": target,
            "minReplicas": 1,
            "maxReplicas": 4,
            "metrics": [{"type": "External", "external": metric}],
        },
    }


def read(operator: OperatorUnderTest, resource: Resource, name: str) -> Any:
    try:
        return operator._read(resource, name, "")
    except NotFound:
        return None


def apply(operator: OperatorUnderTest, manifest: Manifest) -> None:
    operator.access.kubectl(
        "apply", "--server-side", "-n", operator.namespace, "-f", "-", input=json.dumps(manifest)
    )  # fmt: skip


def test_an_autoscaler_finds_the_pools_scale_and_is_named_where_it_has_no_say(operator: OperatorUnderTest) -> None:
    operator.apply(pool_manifest(**MANUAL))
    eventually(lambda: operator.is_condition("Ready", "True"), timeout_seconds=60)
    apply(operator, scaler(POOL_TARGET))

    def conditions() -> dict[str, dict[str, Any]]:
        found = read(operator, AUTOSCALER, "by-queue").get("status", {}).get("conditions", ())
        return {each["type"]: each for each in found}

    eventually(lambda: "ScalingActive" in conditions(), timeout_seconds=90, what="the HPA was computed")
    assert conditions()["AbleToScale"]["reason"] == "SucceededGetScale"
    assert conditions()["ScalingActive"]["reason"] == "FailedGetExternalMetric", "only its metric is missing"
    assert read(operator, AUTOSCALER, "by-queue")["status"]["currentReplicas"] == 1
    assert operator.condition("ScalingLimited")["reason"] == "ScalingManual"

    operator.access.kubectl("scale", "inferencepools.tidegate.dev/chat", "--replicas=2", "-n", operator.namespace)
    eventually(lambda: operator.get("deployment", "chat")["spec"]["replicas"] == 2)
    operator.apply(pool_manifest(scaling={"mode": "Auto"}, replicas=2, maxReplicas=4))
    eventually(lambda: operator.condition("ScalingLimited").get("reason") == "ForeignScaler")
    assert "HorizontalPodAutoscaler by-queue: sets spec.replicas" in operator.condition("ScalingLimited")["message"]

    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "chat"}
    apply(operator, scaler(deployment))
    said = "target Deployment chat belongs to the operator"
    eventually(lambda: said in operator.condition("ScalingLimited")["message"])
    events = [each for each in operator.get("events") if each["reason"] == "ForeignScaler"]
    assert any("by-queue" in each["note"] and each["type"] == "Warning" for each in events)
    operator.access.kubectl("delete", "hpa", "by-queue", "-n", operator.namespace)
    eventually(lambda: operator.condition("ScalingLimited").get("reason") != "ForeignScaler")
    operator.assert_quiescent()


def test_neighbours_get_what_was_asked_for_and_who_misroutes_is_named(
    stopped_operator: OperatorUnderTest, nodes: Kubelet, neighbours: None
) -> None:
    operator = stopped_operator
    operator.settings["TIDEGATE_MONITORING__POD_MONITORS"] = "true"
    operator.start()
    operator.apply(pool_manifest(endpointPickerRef={"name": "chat-epp", "failureMode": "FailClose"}))
    eventually(lambda: operator.is_condition("Ready", "True"), timeout_seconds=60)
    eventually(lambda: operator.is_condition("Integrated", "True"))
    picked = eventually(lambda: read(operator, GIE_POOL, "chat"))
    assert picked["spec"]["endpointPickerRef"] == {
        "name": "chat-epp", "port": {"number": 9002}, "failureMode": "FailClose",
    }  # fmt: skip
    assert picked["spec"]["selector"]["matchLabels"]["tidegate.dev/serving"] == "true"
    monitor = eventually(lambda: read(operator, POD_MONITOR, "chat"))
    assert monitor["spec"]["podMetricsEndpoints"][0]["relabelings"] == [{"targetLabel": "pool", "replacement": "chat"}]
    operator.assert_quiescent()
    assert [read(operator, each, "chat")["metadata"]["resourceVersion"] for each in (GIE_POOL, POD_MONITOR)] == [
        each["metadata"]["resourceVersion"] for each in (picked, monitor)
    ]

    blind = {**picked, "metadata": {"name": "blind"}}
    blind["spec"] = {**picked["spec"], "selector": {"matchLabels": {"tidegate.dev/pool": "chat"}}}
    apply(operator, blind)
    eventually(lambda: operator.condition("Integrated").get("reason") == "ForeignPicker")
    assert "inferencepools.inference.networking.k8s.io blind" in operator.condition("Integrated")["message"]

    operator.apply(pool_manifest())
    eventually(lambda: read(operator, GIE_POOL, "chat") is None)
    assert read(operator, GIE_POOL, "blind") is not None
    assert read(operator, POD_MONITOR, "chat") is not None


def test_an_api_that_is_not_installed_keeps_nothing_from_working_and_a_start_is_measured_once(
    stopped_operator: OperatorUnderTest, nodes: Kubelet, tmp_path: Path
) -> None:
    operator, prices = stopped_operator, tmp_path / "prices.yaml"
    operator.settings["TIDEGATE_PRICES_FILE"] = str(prices)
    operator.apply(pool_manifest(endpointPickerRef={"name": "chat-epp"}))
    operator.start()
    eventually(lambda: operator.is_condition("Ready", "True"), timeout_seconds=60)
    assert operator.condition("Integrated")["reason"] == "ApiNotInstalled"
    start = eventually(lambda: operator.pool()["status"].get("coldStart"))
    assert (start["phases"]["loadSeconds"], start["phases"]["warmUpSeconds"]) == (20, 3)
    assert [each["pod"] for each in start["measured"]] == [pod["metadata"]["name"] for pod in operator.engine_pods()]
    operator.assert_quiescent()
    operator.stop()
    operator.start()
    operator.assert_quiescent()
    assert operator.pool()["status"]["coldStart"] == start
    metrics = operator._get("/metrics")
    assert 'tidegate_pool_cold_start_p90_seconds{namespace="' in metrics
    assert 'tidegate_cold_start_seconds_count{phase="all"}' not in metrics, "measured by the operator before this one"

    prices.write_text('nvidia.com/gpu: "2.50"')
    (pod,) = operator.engine_pods()
    bind(operator, pod["metadata"]["name"])
    cost = eventually(lambda: operator.pool()["status"].get("cost"))
    assert cost == {"perHour": "2.5", "basis": "1 replica: 1 x nvidia.com/gpu at 2.5"}
    series = f'tidegate_pool_cost_per_hour{{namespace="{operator.namespace}",pool="chat"}} 2.5'
    eventually(lambda: series in operator._get("/metrics"))


def bind(operator: OperatorUnderTest, pod: str) -> None:
    """What a scheduler does; from here on the pod takes something that has a price."""
    path = f"/api/v1/namespaces/{operator.namespace}/pods/{pod}/binding"
    target = {"apiVersion": "v1", "kind": "Node", "name": "n1"}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod}, "target": target}
    operator.client._request("POST", path, {}, binding, "application/json")
