"""From a checkpoint on disk to a model in memory and room for its KV pool. The torch runner's start-up.

Peak memory is what is kept plus the parts in flight (matrix.py): files are mapped, and what the allocator still holds
is returned to the system before weights are loaded and again before free memory is measured.
"""

import time
from dataclasses import dataclass
from pathlib import Path

import torch

from tidegate_checkpoint.end_tokens import end_ids, generation_end_ids
from tidegate_checkpoint.shape import read_shape
from tidegate_core.accelerator import Device
from tidegate_core.launch import EngineLaunch
from tidegate_core.memory import loading_floor_bytes, weight_bytes
from tidegate_core.quantity import format_bytes
from tidegate_core.shape import ModelShape
from tidegate_core.sizing import BLOCK_SIZE, BlockPlan, Demand, Target, free_after_load, plan_blocks
from tidegate_core.storage import Precision, storage_of
from tidegate_engine.compute.kv_cache import KvLayout
from tidegate_engine.compute.layers import LayerLoader
from tidegate_engine.compute.linear_choice import LinearChoice
from tidegate_engine.compute.weights import open_weights
from tidegate_engine.models.base import Model
from tidegate_engine.models.registry import load_model
from tidegate_engine.process.container import cpu_threads, usable_memory_bytes
from tidegate_engine.process.exits import DoesNotFit
from tidegate_engine.process.process_memory import private_bytes, return_free_memory

_DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to compute, and what the rest of the engine needs to know of it."""

    model: Model
    shape: ModelShape
    device: torch.device
    kv_layout: KvLayout
    weight_bytes: int  # as kept
    eos_token_ids: frozenset[int]
    target: Target
    used_bytes: int  # of the device, measured after loading


def load(launch: EngineLaunch, path: Path, memory_bytes: int | None = None) -> LoadedModel:
    """`memory_bytes` of the device; None: what there is. Raises CheckpointError or DoesNotFit."""
    return_free_memory()
    torch.set_num_threads(launch.threads or cpu_threads())
    shape = read_shape(path)
    target = Target(launch.device, memory_bytes or _memory_of(torch.device(launch.device.value)))
    _check_loading_has_room(launch, shape, target)
    weights = open_weights(path)
    device = torch.device(launch.device.value)
    storage = storage_of(shape)
    with LayerLoader(
        weights,
        device=device,
        dtype=_DTYPES[shape.dtype] if launch.device is Device.CUDA else torch.float32,
        precision=storage.precision,
        choice=LinearChoice(time.perf_counter),
    ) as loader:
        model = load_model(weights.config, loader, device)
    return_free_memory()
    return LoadedModel(
        model=model,
        shape=shape,
        device=device,
        kv_layout=_kv_layout(shape, _kv_dtype(launch.device, shape, storage.precision)),
        weight_bytes=weight_bytes(shape, storage, launch.device),
        eos_token_ids=generation_end_ids(path) or end_ids(weights.config, str(path)),
        target=target,
        used_bytes=private_bytes() if launch.device is Device.CPU else _used_on_device(device),
    )


def plan_pool(launch: EngineLaunch, loaded: LoadedModel) -> BlockPlan:
    """KV blocks in what is really free, or in launch.kv_memory. Raises DoesNotFit with the numbers."""
    demand = Demand(
        context_max=launch.context,
        context_min=launch.context and min(launch.context, 2048),
        prompt_tokens=launch.prompt_tokens,
        output_tokens=launch.output_tokens,
        max_slots=launch.slots,
    )
    _check_pool_has_room(launch, loaded)
    free_bytes = launch.kv_memory or free_after_load(loaded.shape, loaded.target, loaded.used_bytes)
    plan = plan_blocks(loaded.shape, loaded.target, demand, free_bytes)
    if plan.slots == 0:
        raise DoesNotFit(
            f"{launch.model}: {format_bytes(free_bytes)} for KV blocks of {format_bytes(plan.block_bytes)} hold only "
            f"{plan.context} tokens; of {format_bytes(loaded.target.memory_bytes)}, the loaded model takes "
            f"{format_bytes(loaded.used_bytes)}: "
            + ("raise --kv-memory" if launch.kv_memory else "give it more memory")
            + " or lower --context"
        )
    return plan


def _check_loading_has_room(launch: EngineLaunch, shape: ModelShape, target: Target) -> None:
    """Better refused than ended by the kernel without a word, here and below."""
    needed = loading_floor_bytes(shape, target, storage_of(shape))
    if needed > target.memory_bytes:
        raise DoesNotFit(
            f"{launch.model}: loading takes up to {format_bytes(needed)}, there are "
            f"{format_bytes(target.memory_bytes)}: give it that much memory, and room for the KV cache"
        )


def _check_pool_has_room(launch: EngineLaunch, loaded: LoadedModel) -> None:
    memory_bytes = loaded.target.memory_bytes
    if launch.kv_memory is not None and loaded.used_bytes + launch.kv_memory > memory_bytes:
        raise DoesNotFit(
            f"{launch.model}: --kv-memory {format_bytes(launch.kv_memory)} and {format_bytes(loaded.used_bytes)} of "
            f"the loaded model exceed the {format_bytes(memory_bytes)} there are: lower it, or leave it out"
        )


def _kv_dtype(device: Device, shape: ModelShape, precision: Precision) -> torch.dtype:
    """On CPU 16 bits mean fp16, which keeps more digits than bf16; on CUDA the cache has the model's dtype."""
    if device is Device.CUDA:
        return _DTYPES[shape.dtype]
    return torch.float32 if precision is Precision.BITS_32 else torch.float16


def _kv_layout(shape: ModelShape, dtype: torch.dtype) -> KvLayout:
    heads = {(group.num_kv_heads, group.head_dim) for group in shape.attention}
    assert len(heads) == 1, f"{shape.architecture}: layers with different heads: {heads}"
    ((num_kv_heads, head_dim),) = heads
    num_layers = sum(group.num_layers for group in shape.attention)
    return KvLayout(num_layers, BLOCK_SIZE, num_kv_heads, head_dim, dtype)


def _memory_of(device: torch.device) -> int:
    return usable_memory_bytes() if device.type == "cpu" else torch.cuda.mem_get_info(device)[1]


def _used_on_device(device: torch.device) -> int:
    torch.cuda.empty_cache()
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    return total_bytes - free_bytes
