"""The device that a pool is sized for: labels of nodes, slices, sharing, nodes that differ; and how many it takes."""

from typing import Any

import pytest

from pools import NOW, SETTINGS, cpu_pool_manifest, inspected, pool, stored
from shapes import full_layers, shape_of
from tidegate_core.accelerator import find_accelerator
from tidegate_operator.api.reasons import Reason
from tidegate_operator.decisions.planning import plan
from tidegate_operator.sizing.devices import PoolDevice, UnknownDevice, find_device
from tidegate_operator.sizing.fitting import find_fit
from tidegate_operator.world.observed import Node, Observed, Taint

GPU, SLICE = "nvidia.com/gpu", "nvidia.com/mig-3g.40gb"
SEVENTH, HALF = "A100-SXM4-80GB-MIG-1g.10gb", "A100-SXM4-80GB-MIG-3g.40gb"
MIB, GIB = 2**20, 2**30
LARGE = shape_of(full_layers(80, 8, 128), linear_elements=68_000_000_000, num_attention_heads=64)  # Llama 3.1 70B


def node(name: str = "a", resource: str = GPU, devices: int = 1, **facts: Any) -> Node:
    labels = {key.replace("GPU", resource): value for key, value in facts.pop("labels", {}).items()}
    return Node(name, labels, {resource: str(devices)}, **facts)


def device(*nodes: Node, **accelerator: Any) -> PoolDevice:
    found = find_device(pool(accelerator=accelerator), nodes)
    assert isinstance(found, PoolDevice), found
    return found


def unknown(*nodes: Node, **accelerator: Any) -> str:
    found = find_device(pool(accelerator=accelerator), nodes)
    assert isinstance(found, UnknownDevice), found
    return found.message


@pytest.mark.parametrize(
    ("resource", "labels", "name", "memory_mib", "is_slice"),
    [
        (GPU, {"GPU.memory": "81559", "GPU.product": "NVIDIA-H100-80GB-HBM3"}, "NVIDIA-H100-80GB-HBM3", 81559, False),
        (GPU, {"GPU.product": "NVIDIA-L4"}, "NVIDIA-L4", 23034, False),
        (GPU, {"GPU.memory": "40960"}, GPU, 40960, False),
        ("amd.com/gpu", {"GPU.product-name": "AMD_Instinct_MI300X_OAM"}, "AMD_Instinct_MI300X_OAM", 196592, False),
        # one profile a node: the device plugin keeps the resource's name
        (GPU, {"GPU.memory": "9728", "GPU.product": SEVENTH}, SEVENTH, 9728, True),
        # several: a resource a profile, with labels of its own
        (SLICE, {"GPU.memory": "40448", "GPU.product": HALF}, HALF, 40448, True),
        (SLICE, {}, SLICE, 38912, True),  # what the name of the profile says
        # memory of a device that several pods share by MPS is divided between them
        (GPU, {"GPU.memory": "81920", "GPU.sharing-strategy": "mps", "GPU.replicas": "4"}, GPU, 20480, False),
    ],
)  # fmt: skip
def test_the_memory_of_a_device_comes_from_the_labels_of_its_node(
    resource: str, labels: dict[str, str], name: str, memory_mib: int, is_slice: bool
) -> None:
    found = device(node(resource=resource, labels=labels), resource=resource)
    assert (found.name, found.memory_bytes, found.is_slice) == (name, memory_mib * MIB, is_slice)


def test_a_device_shared_by_time_slicing_has_no_memory_that_a_label_tells() -> None:
    shared = node(labels={"GPU.memory": "81920", "GPU.sharing-strategy": "time-slicing", "GPU.replicas": "4"})
    assert unknown(shared) == (
        "the memory of nvidia.com/gpu is not known: node a shares each nvidia.com/gpu between 4 pods by time-slicing, "
        "and no label says how much memory one of them has; set accelerator.memory, such as 24Gi"
    )
    assert device(shared, memory="20Gi").memory_bytes == 20 * GIB


def test_a_label_that_is_no_number_is_no_label() -> None:
    labels = {"GPU.memory": "40960", "GPU.sharing-strategy": "mps", "GPU.replicas": "many"}
    assert device(node(labels=labels)).memory_bytes == 40960 * MIB
    assert "neither the label nvidia.com/gpu.memory" in unknown(node(labels={"GPU.memory": "80Gi"}))
    assert device(node(labels={**labels, "GPU.replicas": "0"})).memory_bytes == 40960 * MIB


def test_a_node_without_a_word_about_its_device_is_named() -> None:
    assert "node b has neither the label nvidia.com/gpu.memory" in unknown(
        node("a", labels={"GPU.memory": "40960"}), node("b")
    )
    assert "'NVIDIA-X9' is not in the catalogue" in unknown(node(labels={"GPU.product": "NVIDIA-X9"}))


SMALL = node("small", labels={"GPU.memory": "23034", "GPU.product": "NVIDIA-L4"})
BIG = node("big", devices=8, labels={"GPU.memory": "81559", "GPU.product": "NVIDIA-H100-80GB-HBM3"})


def test_where_nodes_differ_the_smallest_device_counts_and_the_selector_of_a_larger_one_is_told() -> None:
    found = device(BIG, SMALL)
    assert (found.memory_bytes, found.most_on_a_node) == (23034 * MIB, 8)
    assert found.difference == (
        "sized for the smallest nvidia.com/gpu that may be scheduled, 22.49 GiB on node small; pod.nodeSelector "
        "{nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3} would give 79.65 GiB"
    )
    chosen = find_device(pool(accelerator={}, pod={"nodeSelector": {f"{GPU}.product": "NVIDIA-L4"}}), (BIG, SMALL))
    assert isinstance(chosen, PoolDevice)
    assert (chosen.memory_bytes, chosen.difference) == (23034 * MIB, "")
    fit = find_fit(pool(accelerator={}), shape_of(), (BIG, SMALL))
    assert found.difference in fit.message
    assert fit.reason is Reason.FITS


def test_a_node_that_pods_cannot_reach_or_that_is_on_its_way_out_decides_about_nothing() -> None:
    tainted = node("small", labels={"GPU.memory": "23034"}, taints=(Taint("team", "x", "NoSchedule"),))
    cordoned = node("small", labels={"GPU.memory": "23034"}, is_cordoned=True, is_schedulable=False)
    unready = node("small", labels={"GPU.memory": "23034"}, is_schedulable=False)
    assert device(BIG, tainted).memory_bytes == 81559 * MIB
    assert device(BIG, cordoned).memory_bytes == 81559 * MIB
    assert device(BIG, unready).memory_bytes == 23034 * MIB, "it comes back by itself"
    assert device(cordoned).memory_bytes == 23034 * MIB, "better than to know nothing"
    assert "no node that the pool may use has nvidia.com/gpu" in unknown(tainted)


def test_the_memory_of_a_cpu_pool_is_its_limit_whatever_nodes_have() -> None:
    found = find_device(stored(cpu_pool_manifest(memory="3Gi")), (BIG,))
    assert found == PoolDevice("cpu", 3 * GIB)


# how many devices


def h200(devices: int) -> Node:
    return node(devices=devices, labels={"GPU.memory": "143771", "GPU.product": "NVIDIA-H200"})


def test_a_model_that_takes_two_devices_is_not_deployed_and_says_what_it_takes_and_what_engines_serve() -> None:
    subject = pool(accelerator={})
    found = find_fit(subject, LARGE, (h200(8),))
    assert (found.is_good, found.reason) == (False, Reason.DOES_NOT_FIT)
    assert (
        "it takes 2 devices of 140.4 GiB on one node, but this engine version serves 1 device a replica"
        in found.message
    )
    assert "choose nodes with B200" in found.message, "what a person can do today comes as a remedy"
    observed = Observed(inspections=(inspected(LARGE.to_json()),), nodes=(h200(8),))
    assert [each["kind"] for each in plan(subject, observed, SETTINGS, NOW).apply] == ["ControllerRevision"]


def test_more_devices_than_any_node_has_are_never_waited_for() -> None:
    found = find_fit(pool(accelerator={}), LARGE, (h200(1), h200(1)))
    assert (
        "on one node, but this engine version serves 1 device a replica, and no node has more than 1" in found.message
    )


def test_a_number_of_devices_in_the_spec_that_engines_do_not_serve_is_refused_with_the_field_to_change() -> None:
    found = find_fit(pool(accelerator={"count": 2, "memory": "80Gi"}), shape_of(), None)
    assert (found.is_good, found.reason) == (False, Reason.DOES_NOT_FIT)
    assert found.message.startswith(
        "2 devices of 80 GiB are asked for, but this engine version serves 1 device a replica; "
        "set accelerator.count to 1 or leave it out"
    )
    assert find_fit(pool(accelerator={"count": 1, "memory": "80Gi"}), shape_of(), None).is_good


def test_slices_of_a_gpu_are_not_offered_to_be_joined() -> None:
    found = find_fit(pool(accelerator={"resource": SLICE}), LARGE, (node(resource=SLICE, devices=7),))
    assert "slices of a GPU cannot be joined: one must hold the model" in found.message
    assert "GPUs" not in found.message.replace("of a GPU", "")


def test_a_cpu_pool_is_never_told_to_take_more_devices() -> None:
    found = find_fit(stored(cpu_pool_manifest(memory="8Gi")), LARGE, None)
    assert not found.is_good
    assert "devices" not in found.message


def test_without_a_look_at_nodes_the_product_that_the_pool_asks_for_is_in_the_catalogue() -> None:
    found = find_device(pool(accelerator={}, pod={"nodeSelector": {f"{GPU}.product": "NVIDIA-L4"}}), None)
    assert found == PoolDevice("NVIDIA-L4", find_accelerator("L4").memory_bytes)
    sliced = find_device(
        pool(accelerator={}, pod={"nodeSelector": {f"{GPU}.product": "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb"}}), None
    )
    assert isinstance(sliced, PoolDevice)
    assert sliced.is_slice


@pytest.mark.parametrize(
    ("selector", "said"),
    [({}, f"pod.nodeSelector has no {GPU}.product"), ({f"{GPU}.product": "NVIDIA-X1"}, "'NVIDIA-X1' is not in the")],
    ids=["no product", "an unknown product"],
)
def test_without_a_look_at_nodes_and_a_known_product_the_pool_says_what_to_set(
    selector: dict[str, str], said: str
) -> None:
    found = find_device(pool(accelerator={}, pod={"nodeSelector": selector}), None)
    assert isinstance(found, UnknownDevice)
    assert said in found.message
    assert found.message.endswith("set accelerator.memory, such as 24Gi")
