"""From a checkpoint on disk to a model in memory and room for its KV pool. The torch runner's start-up.

Peak memory is what is kept plus the parts in flight (matrix.py): files are mapped, and what the allocator still holds
is returned to the system before weights are loaded and again before free memory is measured.
"""

import time
from dataclasses import dataclass
from pathlib import Path

import torch

from tidegate_checkpoint.config import parse_config
from tidegate_checkpoint.shape import read_shape
from tidegate_core.accelerator import Device
from tidegate_core.kv_groups import KvGroups, kv_groups
from tidegate_core.launch import EngineLaunch
from tidegate_core.memory import loading_floor_bytes, weight_bytes
from tidegate_core.quantity import format_bytes
from tidegate_core.shape import ModelShape
from tidegate_core.sizing import BLOCK_SIZE, BlockPlan, Demand, Target, free_after_load, plan_blocks
from tidegate_core.storage import Storage, storage_of
from tidegate_engine.compute.kv_cache import KvLayout
from tidegate_engine.compute.kv_dtype import kv_torch_dtype
from tidegate_engine.compute.layers import LayerLoader
from tidegate_engine.compute.linear_choice import LinearChoice
from tidegate_engine.compute.weights import open_weights
from tidegate_engine.models.base import Model
from tidegate_engine.models.registry import load_model
from tidegate_engine.parallel.group import DeviceGroup
from tidegate_engine.parallel.share import WHOLE, Share
from tidegate_engine.process.container import cpu_threads, usable_memory_bytes
from tidegate_engine.process.exits import DoesNotFit
from tidegate_engine.process.process_memory import private_bytes, return_free_memory

DETERMINISTIC_THREADS = 2
_DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to compute, and what the rest of the engine needs to know of it."""

    model: Model
    shape: ModelShape
    storage: Storage
    device: torch.device
    dtype: torch.dtype  # of activations
    kv_groups: KvGroups
    layer_windows: tuple[int | None, ...]
    kv_layout: KvLayout
    weight_bytes: int  # as this device keeps them
    target: Target
    used_bytes: int  # of the device, measured after loading


def load(
    launch: EngineLaunch, path: Path, memory_bytes: int | None = None, group: DeviceGroup | None = None
) -> LoadedModel:
    """`memory_bytes` of the device; None: what there is. `group`: this is one of several devices.

    Raises CheckpointError or DoesNotFit.
    """
    return_free_memory()
    torch.set_num_threads(_threads(launch))
    shape, share = read_shape(path), group.share if group else WHOLE
    device = torch.device(launch.device.value, *([share.rank] if group and launch.device is Device.CUDA else []))
    target = Target(launch.device, memory_bytes or _memory_of(device) // _sharers(launch), tensor_parallel=share.size)
    storage = storage_of(shape, launch.kv_dtype, launch.quantization)
    _check_loading_has_room(launch, shape, target, storage)
    weights = open_weights(path)
    dtype = _DTYPES[shape.dtype] if launch.device is Device.CUDA else torch.float32
    choice = LinearChoice(time.perf_counter, deterministic=launch.deterministic)
    with LayerLoader(weights, device=device, dtype=dtype, storage=storage, choice=choice, group=group) as loader:
        model = load_model(weights.config, loader, device)
    return_free_memory()
    return LoadedModel(
        model=model,
        shape=shape,
        storage=storage,
        device=device,
        dtype=dtype,
        kv_groups=kv_groups(shape),
        layer_windows=parse_config(weights.config, str(path)).windows,
        kv_layout=_kv_layout(
            shape, share, kv_torch_dtype(launch.kv_dtype, launch.device, storage.precision, _DTYPES[shape.dtype])
        ),
        weight_bytes=weight_bytes(shape, storage, launch.device, share.size),
        target=target,
        used_bytes=private_bytes() if launch.device is Device.CPU else _used_on_device(device),
    )


def _sharers(launch: EngineLaunch) -> int:
    """Processes between which this machine's memory and cores are divided; GPUs bring their own memory."""
    return launch.tensor_parallel if launch.device is Device.CPU else 1


def _threads(launch: EngineLaunch) -> int:
    """Three threads and more cut elementwise work within a vector register; what is left over rounds differently."""
    num_threads = max(1, (launch.threads or cpu_threads()) // launch.tensor_parallel)
    return min(num_threads, DETERMINISTIC_THREADS) if launch.deterministic else num_threads


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
    free_bytes = launch.kv_memory or free_after_load(loaded.shape, loaded.target, loaded.used_bytes, loaded.storage)
    plan = plan_blocks(loaded.shape, loaded.target, demand, free_bytes, loaded.storage)
    if plan.slots == 0:
        raise DoesNotFit(
            f"{launch.model}: {format_bytes(free_bytes)} for KV blocks of {format_bytes(plan.block_bytes)} hold only "
            f"{plan.context} tokens; of {format_bytes(loaded.target.memory_bytes)}, the loaded model takes "
            f"{format_bytes(loaded.used_bytes)}: "
            + ("raise --kv-memory" if launch.kv_memory else "give it more memory")
            + " or lower --context"
        )
    return plan


def _check_loading_has_room(launch: EngineLaunch, shape: ModelShape, target: Target, storage: Storage) -> None:
    """Better refused than ended by the kernel without a word, here and below."""
    needed = loading_floor_bytes(shape, target, storage)
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


def _kv_layout(shape: ModelShape, share: Share, dtype: torch.dtype) -> KvLayout:
    heads = {(group.num_kv_heads, group.head_dim) for group in shape.attention}
    assert len(heads) == 1, f"{shape.architecture}: layers with different heads: {heads}"
    ((num_kv_heads, head_dim),) = heads
    own = share.heads(num_kv_heads)
    return KvLayout(kv_groups(shape).layers_per_group, BLOCK_SIZE, own.stop - own.start, head_dim, dtype)


def _memory_of(device: torch.device) -> int:
    return usable_memory_bytes() if device.type == "cpu" else torch.cuda.mem_get_info(device)[1]


def _used_on_device(device: torch.device) -> int:
    torch.cuda.empty_cache()
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    return total_bytes - free_bytes
