"""The device that a pool is sized for: labels of nodes, slices, sharing, nodes that differ; and how many it takes."""

from dataclasses import replace
from typing import Any

import pytest

from pools import NOW, SETTINGS, carried_out, cpu_pool_manifest, inspected, pool, stored
from shapes import full_layers, shape_of
from tidegate_core.accelerator import find_accelerator
from tidegate_operator.api.reasons import Reason
from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.decisions.planning import plan
from tidegate_operator.sizing.devices import PoolDevice, PoolDevices, UnknownDevice, find_devices
from tidegate_operator.sizing.fitting import find_fit
from tidegate_operator.world.observed import Node, Observed, Taint

GPU, SLICE = "nvidia.com/gpu", "nvidia.com/mig-3g.40gb"
SEVENTH, HALF = "A100-SXM4-80GB-MIG-1g.10gb", "A100-SXM4-80GB-MIG-3g.40gb"
MIB, GIB = 2**20, 2**30
LARGE = shape_of(full_layers(80, 8, 128), linear_elements=68_000_000_000, num_attention_heads=64)  # Llama 3.1 70B


def node(name: str = "a", resource: str = GPU, devices: int = 1, **facts: Any) -> Node:
    labels = {key.replace("GPU", resource): value for key, value in facts.pop("labels", {}).items()}
    return Node(name, labels, {resource: str(devices)}, **facts)


def devices(subject: InferencePool, nodes: tuple[Node, ...] | None) -> PoolDevices:
    found = find_devices(subject, nodes)
    assert isinstance(found, PoolDevices), found
    return found


def device(*nodes: Node, **accelerator: Any) -> PoolDevice:
    """Of a replica on one."""
    return devices(pool(accelerator=accelerator), nodes).of(1)


def unknown(*nodes: Node, **accelerator: Any) -> str:
    found = find_devices(pool(accelerator=accelerator), nodes)
    assert isinstance(found, UnknownDevice), found
    return found.message


@pytest.mark.parametrize(
    ("resource", "labels", "name", "memory_mib", "is_part"),
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
        (GPU, {"GPU.memory": "81920", "GPU.sharing-strategy": "mps", "GPU.replicas": "4"}, GPU, 20480, True),
    ],
)  # fmt: skip
def test_the_memory_of_a_device_comes_from_the_labels_of_its_node(
    resource: str, labels: dict[str, str], name: str, memory_mib: int, is_part: bool
) -> None:
    found = devices(pool(accelerator={"resource": resource}), (node(resource=resource, labels=labels),))
    assert (found.of(1).name, found.of(1).memory_bytes) == (name, memory_mib * MIB)
    assert (found.are_parts, len(found.choices)) == (is_part, 1 if is_part else 4)


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
    assert found.memory_bytes == 23034 * MIB
    assert found.difference == (
        "sized for the smallest nvidia.com/gpu that may be scheduled, 22.49 GiB on node small; pod.nodeSelector "
        "{nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3} would give 79.65 GiB"
    )
    chosen = devices(pool(accelerator={}, pod={"nodeSelector": {f"{GPU}.product": "NVIDIA-L4"}}), (BIG, SMALL)).of(1)
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
    found = devices(stored(cpu_pool_manifest(memory="3Gi")), (BIG,))
    assert found == PoolDevices((PoolDevice("cpu", 3 * GIB),))


# how many devices


def h200(devices: int) -> Node:
    return node(devices=devices, labels={"GPU.memory": "143771", "GPU.product": "NVIDIA-H200"})


def test_a_model_that_takes_two_devices_gets_two_of_one_node() -> None:
    subject = pool(accelerator={})
    found = find_fit(subject, LARGE, (h200(8),))
    assert (found.is_good, found.reason) == (True, Reason.FITS)
    assert "on each of 2 devices" in found.message
    assert found.basis is not None
    assert (found.basis.accelerator, found.basis.tensor_parallel) == ("NVIDIA-H200", 2)
    observed = Observed(inspections=(inspected(LARGE.to_json()),), nodes=(h200(8),))
    (deployment,) = (each for each in plan(subject, observed, SETTINGS, NOW).apply if each["kind"] == "Deployment")
    (engine,) = deployment["spec"]["template"]["spec"]["containers"]
    assert "--tensor-parallel=2" in engine["args"]
    assert (engine["resources"]["limits"][GPU], engine["resources"]["requests"][GPU]) == ("2", "2")


def test_more_devices_than_any_node_has_are_never_chosen() -> None:
    subject = pool(accelerator={})
    found = find_fit(subject, LARGE, (h200(1), h200(1)))
    assert (found.is_good, found.reason) == (False, Reason.DOES_NOT_FIT)
    assert found.message.startswith("a replica takes 2 devices of 140.4 GiB on one node, and no node has more than 1. ")
    assert "choose nodes with B200" in found.message
    assert "set accelerator.count to 2 where nodes with so many are made on demand" in found.message
    observed = Observed(inspections=(inspected(LARGE.to_json()),), nodes=(h200(1), h200(1)))
    assert [each["kind"] for each in plan(subject, observed, SETTINGS, NOW).apply] == ["ControllerRevision"]


def test_a_number_that_is_written_and_that_no_node_has_yet_is_waited_for_and_said() -> None:
    subject = pool(accelerator={"count": 4})
    observed = Observed(inspections=(inspected(LARGE.to_json()),), nodes=(h200(2),))
    steps = plan(subject, observed, SETTINGS, NOW)
    assert steps.fit is not None
    assert (steps.fit.is_good, steps.fit.reason) == (True, Reason.FITS)
    assert "replicas wait for a node with 4 devices, none has more than 2" in steps.fit.message
    (deployment,) = (each for each in steps.apply if each["kind"] == "Deployment")
    (engine,) = deployment["spec"]["template"]["spec"]["containers"]
    assert engine["resources"]["limits"][GPU] == "4"


def test_a_template_keeps_its_number_when_the_nodes_that_have_it_go() -> None:
    subject = pool(accelerator={"memory": "143771Mi"})
    observed = Observed(inspections=(inspected(LARGE.to_json()),), nodes=(h200(8),))
    deployed = carried_out(observed, plan(subject, observed, SETTINGS, NOW))
    found = plan(subject, replace(deployed, nodes=(h200(1),)), SETTINGS, NOW).fit
    assert found is not None
    assert found.fit is not None
    assert (found.is_good, found.fit.tensor_parallel) == (True, 2)
    assert "replicas wait for a node with 2 devices, none has more than 1" in found.message


def test_a_node_that_is_too_small_for_a_template_is_said_and_not_hidden_behind_another_number() -> None:
    subject = pool(accelerator={})
    observed = Observed(inspections=(inspected(),), nodes=(BIG,))
    deployed = carried_out(observed, plan(subject, observed, SETTINGS, NOW))
    small = node("small", devices=2, labels={"GPU.memory": "15360", "GPU.product": "Tesla-T4"})
    found = plan(subject, replace(deployed, nodes=(BIG, small)), SETTINGS, NOW).fit
    assert found is not None
    assert found.fit is not None
    assert (found.is_good, found.fit.tensor_parallel) == (False, 1)
    assert "set accelerator.count to 2" in found.message


def test_nodes_that_are_yet_to_come_are_believed_in_where_the_pool_says_what_they_have() -> None:
    elsewhere = {"nodeSelector": {"pool": "to-come"}}
    subject = pool(accelerator={"memory": "80Gi", "count": 4}, pod=elsewhere)
    assert find_fit(subject, LARGE, (h200(1),)).is_good


def test_a_node_with_fewer_devices_than_a_replica_takes_decides_nothing_about_their_memory() -> None:
    found = find_fit(pool(accelerator={}), LARGE, (BIG, SMALL))
    assert found.fit is not None
    assert (found.is_good, found.fit.tensor_parallel, found.fit.memory_bytes) == (True, 2, 81559 * MIB)
    assert "sized for the smallest" not in found.message
    asked = find_fit(pool(accelerator={"count": 2}), shape_of(), (BIG, SMALL)).fit
    assert asked is not None
    assert asked.memory_bytes == 81559 * MIB


def test_without_a_look_at_nodes_the_fewest_that_fit_are_taken() -> None:
    for count, expected in ((None, 2), (4, 4)):
        fit = find_fit(pool(accelerator={"memory": "80Gi", **({"count": count} if count else {})}), LARGE, None).fit
        assert fit is not None
        assert (fit.fits, fit.tensor_parallel) == (True, expected)


def test_a_shrunk_context_is_told_how_many_devices_would_give_all_of_it() -> None:
    found = find_fit(pool(accelerator={"memory": "24Gi"}, context={"max": 40_960, "min": 2048}), shape_of(), (h200(4),))
    assert found.reason is Reason.SHRUNK_TO_FIT
    assert "set accelerator.count to 2 (context 40,960" in found.message
    alone = find_fit(pool(accelerator={"memory": "24Gi"}, context={"max": 40_960, "min": 2048}), shape_of(), (h200(1),))
    assert "accelerator.count" not in alone.message, "no node has two"


@pytest.mark.parametrize("accelerator", [{}, {"count": 2}])
def test_slices_of_a_gpu_are_not_offered_to_be_joined(accelerator: dict[str, Any]) -> None:
    found = find_fit(pool(accelerator={"resource": SLICE, **accelerator}), LARGE, (node(resource=SLICE, devices=7),))
    assert not found.is_good
    assert "slices or shares of a GPU cannot be joined: one must hold the model" in found.message
    assert "GPUs" not in found.message
    assert "accelerator.count" not in found.message
    small = find_fit(
        pool(accelerator={"resource": SLICE, **accelerator}), shape_of(), (node(resource=SLICE, devices=7),)
    )
    assert small.is_good is ("count" not in accelerator)
    if not small.is_good:
        assert small.message.startswith("2 devices are asked for; slices or shares of a GPU cannot be joined")
        assert "set accelerator.count to 1" in small.message
        assert small.fit is not None
        assert "no node has more" not in small.fit.statement, "it has seven"


def test_a_node_with_slices_among_others_is_named_since_without_it_devices_could_be_joined() -> None:
    slices = node("sliced", devices=7, labels={"GPU.memory": "9728", "GPU.product": SEVENTH})
    subject = pool(accelerator={"memory": "80Gi"})
    assert "pod.nodeSelector leave out node sliced" in find_fit(subject, LARGE, (slices, BIG)).message
    assert find_fit(subject, LARGE, (BIG,)).is_good


def test_small_devices_that_make_a_replica_take_several_large_ones_are_told_with_the_selector_that_helps() -> None:
    tiny = node("tiny", labels={"GPU.memory": "15360", "GPU.product": "Tesla-T4"})
    found = find_fit(pool(accelerator={}), shape_of(), (tiny, BIG))
    assert found.fit is not None
    assert (found.is_good, found.fit.tensor_parallel) == (True, 2)
    assert found.message.endswith(
        "; 1 of 79.65 GiB would do with pod.nodeSelector {nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3}"
    )
    assert "would do" not in find_fit(pool(accelerator={"count": 2}), shape_of(), (tiny, BIG)).message, "it is meant"


def test_of_a_context_above_the_model_s_nothing_is_said_about_slices() -> None:
    subject = pool(accelerator={"resource": SLICE}, context={"min": 10**6, "max": 10**6})
    assert "joined" not in find_fit(subject, shape_of(), (node(resource=SLICE, devices=7),)).message


def test_a_gpu_whose_label_says_that_it_is_a_slice_is_none_to_be_joined_whatever_its_memory_is_said_to_be() -> None:
    labels = {"GPU.memory": "9728", "GPU.product": SEVENTH}
    found = find_fit(pool(accelerator={"memory": "10Gi"}), LARGE, (node(devices=7, labels=labels),))
    assert "cannot be joined" in found.message


def test_a_cpu_pool_is_never_told_to_take_more_devices() -> None:
    found = find_fit(stored(cpu_pool_manifest(memory="8Gi")), LARGE, None)
    assert not found.is_good
    assert "devices" not in found.message


def test_without_a_look_at_nodes_the_product_that_the_pool_asks_for_is_in_the_catalogue() -> None:
    found = devices(pool(accelerator={}, pod={"nodeSelector": {f"{GPU}.product": "NVIDIA-L4"}}), None)
    assert found.of(1) == PoolDevice("NVIDIA-L4", find_accelerator("L4").memory_bytes)
    assert [each.num_devices for each in found.choices] == [1, 2, 4, 8]
    product = {f"{GPU}.product": "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb"}
    assert devices(pool(accelerator={}, pod={"nodeSelector": product}), None).are_parts


@pytest.mark.parametrize(
    ("selector", "said"),
    [({}, f"pod.nodeSelector has no {GPU}.product"), ({f"{GPU}.product": "NVIDIA-X1"}, "'NVIDIA-X1' is not in the")],
    ids=["no product", "an unknown product"],
)
def test_without_a_look_at_nodes_and_a_known_product_the_pool_says_what_to_set(
    selector: dict[str, str], said: str
) -> None:
    found = find_devices(pool(accelerator={}, pod={"nodeSelector": selector}), None)
    assert isinstance(found, UnknownDevice)
    assert said in found.message
    assert found.message.endswith("set accelerator.memory, such as 24Gi")
