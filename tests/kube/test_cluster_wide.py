"""An operator of the whole cluster may look at nodes, so a pool need not say how much memory its accelerator has."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from e2e.cluster.api_server import ApiServer
from kubelet import Ending, Kubelet
from operator_forks import OperatorForks
from operator_process import OperatorUnderTest, operator_process
from pools import CLAIM, pool_manifest
from shapes import full_layers, shape_of
from waiting import eventually


@pytest.fixture
def operator(
    api_server: ApiServer, forks: OperatorForks, pools_namespace: str, nodes: Kubelet, tmp_path: Path
) -> Iterator[OperatorUnderTest]:
    """Not started."""
    token = "a-token-of-this-test"
    with operator_process(api_server, forks, pools_namespace, tmp_path, token, is_cluster_wide=True) as prepared:
        yield prepared


@pytest.fixture
def gpu_node(api_server: ApiServer, namespace: str) -> Iterator[str]:
    with node_of_gpus(api_server, namespace, "NVIDIA-L4", "23034", num_gpus=1) as name:
        yield name


@contextmanager
def node_of_gpus(
    api_server: ApiServer, namespace: str, product: str, memory_mib: str, *, num_gpus: int
) -> Iterator[str]:
    """Known to the API server alone, and for the pools of this namespace."""
    name, devices = f"gpu-{namespace}", {"nvidia.com/gpu": str(num_gpus)}
    labels = {"nvidia.com/gpu.memory": memory_mib, "nvidia.com/gpu.product": product, "for": namespace}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
    api_server.kubectl("create", "-f", "-", input=json.dumps(node))
    status = {"status": {"allocatable": devices, "capacity": devices}}
    api_server.kubectl("patch", "node", name, "--subresource=status", "--type=merge", "-p", json.dumps(status))
    yield name
    api_server.kubectl("delete", "node", name)


def test_the_memory_of_an_accelerator_comes_from_the_nodes(operator: OperatorUnderTest, gpu_node: str) -> None:
    operator.start()
    operator.apply(pool_manifest(accelerator={}, pod={"nodeSelector": {"for": operator.namespace}}))
    eventually(lambda: operator.is_condition("Ready", "True"))
    assert operator.pool()["status"]["sizing"]["memoryBytes"] == 23034 * 2**20
    operator.assert_quiescent()


def test_a_large_model_gets_the_fewest_devices_of_one_node_that_hold_it_and_waits_for_more_that_are_written(
    operator: OperatorUnderTest, api_server: ApiServer, nodes: Kubelet
) -> None:
    large = shape_of(full_layers(80, 8, 128), linear_elements=68_000_000_000, num_attention_heads=64)
    nodes.ending = Ending(0, large.to_json())
    there = {"pod": {"nodeSelector": {"for": operator.namespace}}}
    with node_of_gpus(api_server, operator.namespace, "NVIDIA-L40S", "46068", num_gpus=4):
        operator.start()
        operator.apply(pool_manifest(accelerator={}, **there))
        eventually(lambda: operator.is_condition("Ready", "True"))
        assert operator.pool()["status"]["sizing"]["tensorParallel"] == 4
        (pod,) = operator.engine_pods()
        (engine,) = pod["spec"]["containers"]
        assert "--tensor-parallel=4" in engine["args"]
        assert (engine["resources"]["limits"]["nvidia.com/gpu"], engine["resources"]["requests"]["cpu"]) == ("4", "4")
        (shared,) = (each for each in pod["spec"]["volumes"] if each["name"] == "shm")
        assert shared["emptyDir"] == {"medium": "Memory", "sizeLimit": "8256Mi"}
        operator.assert_quiescent()

        operator.apply(pool_manifest(accelerator={"count": 8}, **there))
        words = "replicas wait for a node with 8 devices, none has more than 4"
        eventually(lambda: words in operator.condition("Fits")["message"])
        operator.assert_quiescent()


def test_a_rollout_surges_onto_a_free_accelerator(operator: OperatorUnderTest, gpu_node: str) -> None:
    there = {"pod": {"nodeSelector": {"for": operator.namespace}}}
    operator.start()
    operator.apply(pool_manifest(**there))
    eventually(lambda: operator.is_condition("Ready", "True"))
    operator.apply(pool_manifest(context={"max": 2048, "min": 1024}, **there))
    eventually(
        lambda: operator.pool()["status"]["sizing"]["context"] == 2048 and operator.is_condition("Ready", "True")
    )
    assert operator.get("deployment", "chat")["spec"]["strategy"]["rollingUpdate"] == {
        "maxSurge": 1,
        "maxUnavailable": 0,
    }
    rollout = operator.pool()["status"]["rollout"]
    assert (rollout["strategy"], rollout["revision"]) == ("Surge", 2)
    assert rollout["reason"] == f"1 nvidia.com/gpu free on node {gpu_node}"
    operator.assert_quiescent()


def test_without_such_a_node_the_pool_says_what_to_set(operator: OperatorUnderTest) -> None:
    operator.start()
    operator.apply(pool_manifest(accelerator={}))
    eventually(lambda: operator.condition("Stalled").get("reason") == "MemoryUnknown")
    assert "add such a node, or set accelerator.resource: cpu" in operator.condition("Stalled")["message"]
    assert not operator.get("deployments")
    operator.assert_quiescent()


def test_a_namespace_deleted_while_its_pool_is_inspected_goes_away(
    operator: OperatorUnderTest, api_server: ApiServer
) -> None:
    operator.start()
    other = f"{operator.namespace}-other"
    api_server.kubectl("create", "namespace", other)
    for manifest in (CLAIM, pool_manifest()):
        api_server.kubectl("apply", "-n", other, "-f", "-", input=json.dumps(manifest))
    eventually(lambda: "chat-inspect-" in api_server.kubectl("get", "jobs", "-n", other, "-o", "name"))
    api_server.kubectl("delete", "namespace", other, "--wait=false")
    eventually(lambda: f"/{other}\n" not in api_server.kubectl("get", "namespaces", "-o", "name"), timeout_seconds=90)
    assert "Traceback" not in operator.log()
