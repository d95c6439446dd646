"""How many devices a replica takes, what the engine makes of it, and the devices next to the one at hand."""

import pytest

from shapes import full_layers, mla_layers, shape_of
from tidegate_core.accelerator import Device, find_accelerator
from tidegate_core.devices import DEVICE_COUNTS, fewest_devices
from tidegate_core.estimate import Case
from tidegate_core.fit import MOST_DEVICES_SERVED, Constraint, Demand, Option, Target
from tidegate_core.shape import AttentionGroup, ModelShape
from tidegate_core.sizing import plan_fit, plan_replica
from tidegate_core.storage import storage_of

GIB = 2**30
LARGE = shape_of(full_layers(80, 8, 128), linear_elements=68_000_000_000, num_attention_heads=64)  # Llama 3.1 70B


def gpu(name: str) -> Target:
    return Target(Device.CUDA, find_accelerator(name).memory_bytes)


def case(shape: ModelShape, name: str, demand: Demand | None = None) -> Case:
    return Case(shape, gpu(name), demand or Demand(context_max=8192), storage_of(shape))


@pytest.mark.parametrize(
    ("model", "shape", "name", "expected"),
    [
        ("8B", shape_of(), "L4", 1),
        ("8B", shape_of(), "T4", 2),
        ("70B", LARGE, "H200", 2),
        ("70B", LARGE, "H100", 2),
        ("70B", LARGE, "L40S", 4),
        ("70B", LARGE, "L4", 8),
        ("70B", LARGE, "T4", None),
        ("8B with 12 heads", shape_of(num_attention_heads=12), "T4", 2),
        ("8B with 15 heads", shape_of(num_attention_heads=15), "T4", None),
    ],
)
def test_the_fewest_devices_on_which_a_model_fits(
    model: str, shape: ModelShape, name: str, expected: int | None
) -> None:
    assert fewest_devices(case(shape, name)) == expected, model


@pytest.mark.parametrize(
    ("attention", "shares"),
    [
        (full_layers(36, 8, 128), (144, 72, 36, 18)),  # KiB a token and device on 1, 2, 4, 8
        (full_layers(36, 4, 128), (72, 36, 18, 18)),  # fewer heads than devices: each has a copy of one
        (full_layers(36, 1, 128), (18, 18, 18, 18)),
        (mla_layers(64, 512, 64), (72, 72, 72, 72)),  # a latent serves all heads
    ],
)
def test_what_a_device_holds_of_a_token_when_a_replica_is_spread(
    attention: AttentionGroup, shares: tuple[int, ...]
) -> None:
    fits = [
        plan_fit(shape_of(attention), Target(Device.CUDA, 192 * GIB, tensor_parallel=n), Demand())
        for n in DEVICE_COUNTS
    ]
    assert tuple(fit.per_gpu_kv_bytes_per_token // 1024 for fit in fits) == shares


def test_a_replica_takes_one_device_where_that_is_enough() -> None:
    assert plan_replica(shape_of(), gpu("H100"), Demand(context_max=8192)) == plan_fit(
        shape_of(), gpu("H100"), Demand(context_max=8192)
    )


def test_what_needs_more_devices_than_the_engine_serves_does_not_fit_and_says_how_many_it_takes() -> None:
    assert MOST_DEVICES_SERVED == 1, "the sentences below are those of an engine of one device"
    fit = plan_replica(LARGE, gpu("H200"), Demand(context_max=8192))
    assert (fit.fits, fit.tensor_parallel, fit.devices_needed) == (False, 1, 2)
    assert fit.binding_constraint is Constraint.WEIGHTS
    assert "2 GPUs" in fit.remedies[-1].description


def test_more_devices_than_the_engine_serves_are_refused_with_the_numbers_of_such_a_replica() -> None:
    fit = plan_replica(LARGE, gpu("H200"), Demand(context_max=8192), num_devices=2)
    assert (fit.fits, fit.slots, fit.tensor_parallel, fit.devices_needed) == (False, 0, 2, 2)
    assert fit.binding_constraint is Constraint.DEVICES
    assert fit.statement == (
        "does not fit: 2 devices of 140.4 GiB are asked for, but this engine version serves 1 device a replica"
    )
    assert 2 * fit.per_gpu_weight_bytes >= fit.weight_bytes
    unfit = plan_replica(LARGE, gpu("L4"), Demand(context_max=8192), num_devices=2)
    assert unfit.binding_constraint is Constraint.WEIGHTS, "what would not fit anyway is told as such"


def test_the_next_smaller_and_larger_device_are_sized_too() -> None:
    fit = plan_fit(shape_of(), gpu("L4"), Demand(context_max=8192))
    assert fit.smaller == Option("V100-16GB", 16_384 * 2**20, context=0, slots=0), "it would not fit"
    assert fit.larger is not None
    assert (fit.larger.name, fit.larger.context) == ("RTX-5090", 8192)
    assert fit.larger.slots > fit.slots
    assert plan_fit(shape_of(), gpu("MI300X"), Demand()).larger is None
    smallest = plan_fit(shape_of(), gpu("T4"), Demand())
    assert smallest.smaller is None


def test_the_memory_of_a_cpu_pod_is_halved_and_doubled() -> None:
    fit = plan_fit(shape_of(), Target(Device.CPU, 32 * GIB), Demand(context_max=8192))
    assert fit.smaller == Option("16Gi of memory", 16 * GIB, 0, 0), "it would not fit"
    assert fit.larger is not None
    assert (fit.larger.name, fit.larger.context) == ("64Gi of memory", 8192)


def test_what_engines_measured_beyond_the_estimate_is_taken_from_the_pool_of_the_next() -> None:
    demand = Demand(context_max=8192)
    usual, learned = (
        plan_fit(shape_of(), Target(Device.CUDA, 80 * GIB, loaded_percent=percent), demand) for percent in (100, 110)
    )
    estimated = usual.runtime_bytes + usual.per_gpu_weight_bytes
    assert learned.runtime_bytes + learned.per_gpu_weight_bytes == estimated * 110 // 100
    block_bytes = usual.kv_pool_bytes // usual.kv_blocks
    assert usual.kv_blocks - learned.kv_blocks in {estimated // 10 // block_bytes, estimated // 10 // block_bytes + 1}
