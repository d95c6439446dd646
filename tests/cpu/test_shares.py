"""What each device keeps of a model, and what cannot be divided."""

from dataclasses import replace

import pytest
import torch

from shapes import full_layers, shape_of
from tidegate_checkpoint.shape import read_shape
from tidegate_core.errors import BadLaunch
from tidegate_core.kv import kv_block_bytes
from tidegate_core.launch import Device, EngineLaunch, RunnerKind
from tidegate_core.memory import weight_bytes
from tidegate_core.storage import storage_of
from tidegate_engine.compute.torch_loading import load
from tidegate_engine.compute.torch_runner import check_devices, check_gpus
from tidegate_engine.parallel.group import DeviceGroup
from tidegate_engine.parallel.share import Share, check_divisible
from tidegate_engine.process.loading import crew_of, simulated_plan
from tiny_models import save_tiny_model


def of_all(number: int, size: int) -> list[tuple[int, int]]:
    heads = [Share(rank, size).heads(number) for rank in range(size)]
    return [(each.start, each.stop) for each in heads]


def test_heads_are_divided_and_fewer_than_devices_are_held_by_neighbours():
    assert of_all(8, 4) == [(0, 2), (2, 4), (4, 6), (6, 8)]
    assert of_all(2, 8) == [(0, 1)] * 4 + [(1, 2)] * 4


@pytest.mark.parametrize(("num_query", "num_kv", "size"), [(32, 8, 8), (28, 4, 4), (12, 2, 4), (64, 8, 4), (8, 1, 8)])
def test_every_query_head_finds_the_key_head_it_reads_beside_it(num_query, num_kv, size):
    for rank in range(size):
        query, kv = Share(rank, size).heads(num_query), Share(rank, size).heads(num_kv)
        group = (query.stop - query.start) // (kv.stop - kv.start)  # as attention divides what is there
        for place, head in enumerate(range(query.start, query.stop)):
            assert kv.start + place // group == head // (num_query // num_kv)


@pytest.mark.parametrize("size", [2, 4, 8])
def test_odd_numbers_are_divided_without_a_rest(size):
    parts = [Share(rank, size).part(151_937) for rank in range(size)]
    assert [part.start for part in parts] == [0, *(part.stop for part in parts[:-1])]
    assert parts[-1].stop == 151_937
    assert max(part.stop - part.start for part in parts) == -(-151_937 // size)


def matrices(found: object, seen: dict[int, int]) -> dict[int, int]:
    """Bytes of all matrices below an object, by address."""
    if isinstance(found, torch.Tensor):
        if found.dim() == 2:
            seen[found.data_ptr()] = found.untyped_storage().nbytes()
    elif isinstance(found, tuple):
        for each in found:
            matrices(each, seen)
    elif not isinstance(found, type) and (inner := getattr(found, "__dict__", None)) is not None:
        matrices(tuple(inner.values()), seen)
    elif getattr(found, "__closure__", None):
        matrices(tuple(cell.cell_contents for cell in found.__closure__), seen)
    return seen


@pytest.mark.parametrize("changes", [{}, {"num_key_value_heads": 1}], ids=str)
@pytest.mark.parametrize("name", ["llama_linear_rope_bias", "llama_llama3_rope_tied", "mistral_window"])
def test_a_device_keeps_the_weights_and_blocks_that_sizing_says(name, changes, tmp_path):
    save_tiny_model(name, tmp_path, **changes)
    shape = read_shape(tmp_path)
    storage = storage_of(shape)
    only_matrices = replace(shape, weights=tuple(group for group in shape.weights if group.width is not None))
    launch = EngineLaunch(model=str(tmp_path), threads=2, tensor_parallel=2)
    devices = [load(launch, tmp_path, 2**32, DeviceGroup(Share(rank, 2))) for rank in (0, 1)]
    kept = [sum(matrices(device.model, {}).values()) for device in devices]
    assert max(kept) == weight_bytes(only_matrices, storage, Device.CPU, 2)
    assert all(device.kv_layout.block_bytes == kv_block_bytes(shape, storage.kv_width, 2) for device in devices)


def test_heads_that_cannot_be_divided_are_refused_with_their_numbers():
    with pytest.raises(BadLaunch, match=r"--tensor-parallel 8: the model's 12 attention heads and 4 key-value heads"):
        check_divisible(shape_of(full_layers(2, 4, 64), num_attention_heads=12), 8)
    with pytest.raises(BadLaunch, match=r"24 attention heads and 6 key-value heads"):
        check_divisible(shape_of(full_layers(2, 6, 64), num_attention_heads=24), 4)


def test_several_devices_promise_no_answer_to_the_bit():
    with pytest.raises(BadLaunch, match="--deterministic is for one device"):
        check_devices(EngineLaunch(model="/m", deterministic=True, tensor_parallel=2))


def test_more_gpus_than_are_visible_are_refused_with_both_numbers():
    with pytest.raises(BadLaunch, match=r"--tensor-parallel 4, but 2 GPUs are visible"):
        check_gpus(EngineLaunch(model="/m", device=Device.CUDA, tensor_parallel=4), num_visible=2)


def test_a_rehearsal_on_two_devices_needs_none_and_has_blocks_of_half_the_size():
    shape = shape_of()
    one, two = (
        simulated_plan(EngineLaunch(model="/m", kv_memory=2**32, tensor_parallel=size, context=512), shape)
        for size in (1, 2)
    )
    assert (two.block_bytes, two.num_blocks) == (one.block_bytes // 2, 2 * one.num_blocks)
    assert crew_of(EngineLaunch(model="/m", runner=RunnerKind.SIM, tensor_parallel=2)) is None
