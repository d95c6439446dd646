"""Where a device's memory goes before the first KV block: each term by name, in the order of the formula.

    usable = memory x utilisation - runtime - collectives - activation - logits - graphs - 2 %
    loading needs runtime + weights + parts in flight + 2 % <= memory: before there are blocks, so none are taken for it

The engine replaces the estimated runtime and weights by what it measures after loading (`free_after_load`).
"""

from dataclasses import dataclass, fields, replace

from tidegate_core.accelerator import Device
from tidegate_core.fit import Target
from tidegate_core.shape import LayerKind, ModelShape, TpRule, WeightGroup, WeightRole
from tidegate_core.storage import Storage, storage_of

MIB = 2**20

# Most tokens of one step and most rows of logits at once; the engine reads both, so that its peak is what was planned.
STEP_TOKENS = 2048
LOGITS_ROWS = {Device.CPU: 64, Device.CUDA: 256}

# Weights are decoded and packed in parts, of which so many exist at once; the engine reads both. A part is 4 B an
# element, and what its decoder needs besides. Products are computed part by part too: smaller ones are slower.
PART_ELEMENTS = 1 << 23
PARTS_IN_FLIGHT = 4
PART_BYTES_PER_ELEMENT = 5

# Private memory of a process before weights: Python with torch and the server (measured: 363 MiB on CPU) and compiled
# kernels with their compiler (76 MiB), on CUDA also what the driver keeps on the host; and the tokenizer (measured:
# 128 MiB for 262,144 entries). The first request held to a grammar adds a table of the vocabulary (measured: 112 MiB).
PROCESS_BYTES = {Device.CPU: 440 * MIB, Device.CUDA: 1024 * MIB}
TOKENIZER_BYTES_PER_ENTRY = 512
GRAMMAR_BYTES_PER_ENTRY = 448
CUDA_CONTEXT_BYTES = 600 * MIB  # on the device: context, cuBLAS workspace, loaded kernels
COLLECTIVES_BYTES = 512 * MIB  # communication buffers of a device when there are several
GRAPHS_BYTES = {Device.CPU: 0, Device.CUDA: 256 * MIB}
RESERVE_SHARE = 0.02  # fragmentation
LOGITS_COPIES = 2  # logits in fp32, and once more while they are sampled
ACTIVATION_BYTES = {Device.CPU: 4, Device.CUDA: 2}  # the CPU computes in fp32


@dataclass(frozen=True)
class Overhead:
    """Bytes of one device that hold neither weights nor KV."""

    unused_share: int
    runtime: int
    collectives: int
    activation: int
    logits: int
    graphs: int
    reserve: int

    @property
    def total(self) -> int:
        """All of it."""
        return sum(getattr(self, field.name) for field in fields(self))


def overhead_of(shape: ModelShape, target: Target) -> Overhead:
    """Every term but weights and KV, for one device."""
    device, tp = target.device, target.tensor_parallel
    return Overhead(
        unused_share=target.memory_bytes - int(target.memory_bytes * target.utilisation),
        runtime=process_bytes(shape, device) if device == Device.CPU else CUDA_CONTEXT_BYTES,
        collectives=COLLECTIVES_BYTES if tp > 1 else 0,
        activation=activation_bytes(shape, device, tp),
        logits=LOGITS_ROWS[device] * shape.vocab_size * 4 * LOGITS_COPIES,
        graphs=GRAPHS_BYTES[device],
        reserve=int(target.memory_bytes * RESERVE_SHARE),
    )


def process_bytes(shape: ModelShape, device: Device) -> int:
    """Private host memory of an engine process, without the weights and KV that a CPU engine keeps there too."""
    return PROCESS_BYTES[device] + shape.vocab_size * (TOKENIZER_BYTES_PER_ENTRY + GRAMMAR_BYTES_PER_ENTRY)


def activation_bytes(shape: ModelShape, device: Device, tensor_parallel: int) -> int:
    """What a full step may take; tests/cpu/test_step_memory.py holds the engine to it, long contexts included."""
    width = 2 * -(-shape.intermediate_size // tensor_parallel) + 6 * shape.hidden_size
    return STEP_TOKENS * width * ACTIVATION_BYTES[device]


def weight_bytes(shape: ModelShape, storage: Storage, device: Device, tensor_parallel: int = 1) -> int:
    """Weights as one device keeps them: its share of split groups, all of replicated ones; tied embeddings once."""
    kept = sum(_share(shape, group, storage, device, tensor_parallel) for group in shape.weights)
    if tensor_parallel == 1:
        return kept
    repeated = _repeated_bytes(shape, storage, device, tensor_parallel)
    return min(kept + repeated, weight_bytes(shape, storage, device))  # shapes may be anything: never more than all


def loading_bytes(shape: ModelShape, device: Device) -> int:
    """What a device holds more while weights are loaded than later. On CUDA parts are made on the host.

    The parts lie where the table for grammars comes later.
    """
    parts = PARTS_IN_FLIGHT * PART_ELEMENTS * PART_BYTES_PER_ELEMENT
    return max(0, parts - shape.vocab_size * GRAMMAR_BYTES_PER_ENTRY) if device == Device.CPU else 0


def loading_floor_bytes(shape: ModelShape, target: Target, storage: Storage) -> int:
    """The least memory in which the engine gets through loading; with less it does not begin."""
    overhead = overhead_of(shape, target)
    kept = weight_bytes(shape, storage, target.device, target.tensor_parallel)
    return overhead.runtime + kept + loading_bytes(shape, target.device) + overhead.reserve


def read_bytes_per_step(shape: ModelShape, storage: Storage, device: Device, tensor_parallel: int = 1) -> int:
    """Weights one device reads in a step: all but untied embeddings, of which a step looks up a few rows.

    Experts count in full: a batch of any size soon touches them all.
    """
    return sum(
        _share(shape, group, storage, device, tensor_parallel)
        for group in shape.weights
        if group.role is not WeightRole.EMBEDDING or shape.has_tied_embeddings
    )


def _share(shape: ModelShape, group: WeightGroup, storage: Storage, device: Device, tensor_parallel: int) -> int:
    """Of a split vocabulary a device has whole rows; of a matrix rows or columns, which only padding tells apart."""
    is_tied = shape.has_tied_embeddings and group.role is WeightRole.EMBEDDING
    if group.rule is TpRule.REPLICATED or tensor_parallel == 1:
        return storage.weight_bytes(group, device, is_tied=is_tied)
    if group.width is None or group.role in {WeightRole.EMBEDDING, WeightRole.HEAD}:
        width = group.width or 1
        own = replace(group, num_elements=-(-group.num_elements // width // tensor_parallel) * width)
    else:
        width = -(-group.width // tensor_parallel)  # as if columns were split everywhere: padding is never more
        own = replace(group, num_elements=group.num_elements // group.width * width, width=width)
    return storage.weight_bytes(own, device, is_tied=is_tied)


def _repeated_bytes(shape: ModelShape, storage: Storage, device: Device, tensor_parallel: int) -> int:
    """What projections of KV heads take more than their share, where the heads are fewer than the devices."""
    num_elements = sum(
        2 * group.num_layers * group.head_dim * shape.hidden_size * (tensor_parallel - group.num_kv_heads)
        for group in shape.attention
        if group.kind is not LayerKind.MLA and group.num_kv_heads < tensor_parallel
    )
    if num_elements == 0:
        return 0
    own = WeightGroup(WeightRole.LINEAR, TpRule.SPLIT, shape.dtype, num_elements, num_elements, shape.hidden_size)
    return _share(shape, own, storage, device, tensor_parallel)


def free_after_load(shape: ModelShape, target: Target, used_bytes: int, storage: Storage | None = None) -> int:
    """Bytes for the KV pool, given what the process measurably uses once its weights are loaded. Never negative.

    On CPU the estimate is a floor: the tokenizer loads beside the weights, and what is not there yet will come.
    """
    overhead = overhead_of(shape, target)
    if target.device == Device.CPU:
        kept = weight_bytes(shape, storage or storage_of(shape), target.device, target.tensor_parallel)
        used_bytes = max(used_bytes, overhead.runtime + kept)
    return max(0, target.memory_bytes - overhead.total + overhead.runtime - used_bytes)
