"""How many devices a replica takes, and the devices next to the one at hand."""

from dataclasses import replace

import pytest

from shapes import full_layers, mla_layers, shape_of
from tidegate_core.accelerator import Device, find_accelerator
from tidegate_core.devices import Spread
from tidegate_core.fit import DEVICE_COUNTS, Constraint, Demand, Fit, Option, RemedyKind, Target
from tidegate_core.shape import AttentionGroup, ModelShape
from tidegate_core.sizing import plan_fit, plan_replica

GIB = 2**30
LARGE = shape_of(full_layers(80, 8, 128), linear_elements=68_000_000_000, num_attention_heads=64)  # Llama 3.1 70B


def gpu(name: str) -> Target:
    return Target(Device.CUDA, find_accelerator(name).memory_bytes)


def spread(shape: ModelShape, name: str, num_devices: int | None = None, most: int | None = None) -> Fit:
    return plan_replica(shape, replace(Spread.of(gpu(name), num_devices), most=most), Demand(context_max=8192))


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
    fit = spread(shape, name)
    assert (fit.tensor_parallel if fit.fits else None) == expected, model


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
    assert spread(shape_of(), "H100") == plan_fit(shape_of(), gpu("H100"), Demand(context_max=8192))


def test_what_is_split_is_a_share_and_every_further_device_costs_buffers_and_a_process() -> None:
    fit = spread(LARGE, "H200")
    assert (fit.fits, fit.tensor_parallel, fit.context) == (True, 2, 8192)
    assert fit.weight_bytes <= 2 * fit.per_gpu_weight_bytes < 1.01 * fit.weight_bytes
    assert fit.collectives_bytes > 0
    one = plan_fit(LARGE, gpu("H200"), Demand(context_max=8192))
    assert fit.resident_bytes - one.resident_bytes == 2**30
    assert "on each of 2 devices give context 8,192" in fit.statement


def test_the_fewest_that_fit_are_taken_even_where_more_would_not_shrink_the_context() -> None:
    wide = Demand(context_max=40_960, context_min=2048)
    fit = plan_replica(shape_of(), Spread.of(gpu("L4")), wide)
    assert (fit.fits, fit.tensor_parallel) == (True, 1)
    assert fit.context < 40_960
    more = next(each for each in fit.remedies if each.kind is RemedyKind.MORE_GPUS)
    assert (more.summary.partition(":")[0], more.context) == ("2 GPUs", 40_960)
    assert more.is_offered
    whole = plan_replica(shape_of(), Spread.of(gpu("L4")), replace(wide, context_min=40_960))
    assert (whole.tensor_parallel, whole.context) == (2, 40_960), "a minimum is never shrunk below"


def test_a_number_that_was_asked_for_is_taken_and_not_made_larger() -> None:
    assert spread(shape_of(), "H100", 2).tensor_parallel == 2
    fit = spread(LARGE, "H200", 1)
    assert (fit.fits, fit.binding_constraint) == (False, Constraint.WEIGHTS)
    assert [each.summary.partition(":")[0] for each in fit.remedies if each.kind is RemedyKind.MORE_GPUS] == ["2 GPUs"]


def test_what_no_eight_devices_hold_is_refused_with_the_numbers_of_eight() -> None:
    fit = spread(LARGE, "T4")
    assert (fit.fits, fit.tensor_parallel, fit.binding_constraint) == (False, 8, Constraint.WEIGHTS)
    assert "weights need 16." in fit.statement
    assert "on each of 8 devices" in fit.statement
    assert "8 x " in next(each for each in fit.remedies if each.kind is RemedyKind.LARGER_GPU).summary


def test_heads_that_cannot_be_divided_by_eight_are_told_of_the_most_that_divide_them() -> None:
    fit = spread(shape_of(full_layers(80, 12, 128), linear_elements=68_000_000_000, num_attention_heads=12), "T4")
    assert (fit.fits, fit.tensor_parallel) == (False, 4)


def test_more_devices_than_a_node_has_do_not_fit_and_remedies_are_for_those_it_has() -> None:
    fit = spread(LARGE, "L40S", most=2)
    assert (fit.fits, fit.slots, fit.tensor_parallel, fit.devices_there) == (False, 0, 4, 2)
    assert fit.binding_constraint is Constraint.DEVICES
    assert fit.statement == (
        "does not fit: a replica takes 4 devices of 44.99 GiB on one node, and no node has more than 2"
    )
    kinds = {each.kind for each in fit.remedies}
    assert RemedyKind.LARGER_GPU in kinds
    assert RemedyKind.MORE_GPUS not in kinds


def test_a_number_that_was_asked_for_is_waited_for_where_no_node_has_it_yet() -> None:
    fit = spread(shape_of(), "H100", 4, most=2)
    assert (fit.fits, fit.tensor_parallel, fit.devices_there) == (True, 4, 2)
    assert fit.statement.endswith("; replicas wait for a node with 4 devices, none has more than 2")
    assert spread(shape_of(), "H100", 4, most=4).devices_there is None


def test_parts_of_a_device_are_not_joined_however_many_are_asked_for() -> None:
    asked = Spread.of(gpu("H100"), 4)
    fit = plan_replica(shape_of(), replace(asked, targets=asked.targets[:1], most=1), Demand(context_max=8192))
    assert (fit.fits, fit.binding_constraint) == (False, Constraint.DEVICES)
    assert [(each.kind, each.summary.partition(":")[0]) for each in fit.remedies] == [(RemedyKind.FEWER_GPUS, "1 GPU")]


def test_a_number_that_models_are_not_divided_by_is_refused() -> None:
    fit = spread(shape_of(num_attention_heads=12), "H100", 3)
    assert (fit.fits, fit.binding_constraint) == (False, Constraint.TENSOR_PARALLEL)
    assert fit.statement == "does not fit: a replica is spread over 1, 2, 4 or 8 devices, not 3"


def test_a_context_above_the_model_s_is_told_of_one_device() -> None:
    fit = plan_replica(shape_of(max_context=4096), Spread.of(gpu("H100")), Demand(context_min=8192))
    assert (fit.fits, fit.tensor_parallel) == (False, 1)
    assert fit.binding_constraint is Constraint.MODEL_CONTEXT


def test_a_cpu_pod_is_one_device() -> None:
    fit = plan_replica(LARGE, Spread.of(Target(Device.CPU, 8 * GIB)), Demand())
    assert (fit.fits, fit.tensor_parallel) == (False, 1)


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
