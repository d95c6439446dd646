"""Bytes that keys and values take: per token where layers grow with the sequence, per sequence where they do not.

Whole blocks of whole groups (kv_groups.py), as the engine allocates them.
"""

from tidegate_core.fit import BLOCK_SIZE
from tidegate_core.kv_demand import KvDemand
from tidegate_core.kv_groups import kv_groups
from tidegate_core.shape import AttentionGroup, LayerKind, ModelShape
from tidegate_core.storage import KvWidth


def kv_demand(shape: ModelShape) -> KvDemand:
    """How many blocks sequences of this model hold."""
    return KvDemand(kv_groups(shape).windows)


def kv_block_bytes(shape: ModelShape, width: KvWidth, tensor_parallel: int = 1) -> int:
    """One block on one device: 16 tokens of all layers of a group."""
    widest = max(_bytes_per_layer(group, width, tensor_parallel) for group in shape.attention)
    return BLOCK_SIZE * kv_groups(shape).layers_per_group * widest


def kv_bytes_per_token(shape: ModelShape, width: KvWidth, tensor_parallel: int = 1) -> int:
    """Of one device, over all layers that grow.

    Heads are divided between devices, and replicated where there are fewer heads than devices. An MLA latent serves all
    heads, so each device holds all of it.
    """
    return kv_demand(shape).num_growing * kv_block_bytes(shape, width, tensor_parallel) // BLOCK_SIZE


def kv_fixed_bytes_per_sequence(shape: ModelShape, width: KvWidth, tensor_parallel: int = 1) -> int:
    """What a long sequence takes besides: the blocks that the windows of its layers cover."""
    return kv_demand(shape).fixed_blocks() * kv_block_bytes(shape, width, tensor_parallel)


def kv_read_bytes(shape: ModelShape, width: KvWidth, num_tokens: int, tensor_parallel: int = 1) -> int:
    """What one token of a sequence of this length reads of it: in a window's layers no more than the window."""
    return sum(
        group.num_layers * min(num_tokens, group.window or num_tokens) * _bytes_per_layer(group, width, tensor_parallel)
        for group in shape.attention
    )


def can_divide_heads(shape: ModelShape, tensor_parallel: int) -> bool:
    """Whether each device can have whole query heads and all the key-value heads that these read, and no others."""
    if shape.num_attention_heads % tensor_parallel:
        return False
    counts = {group.num_kv_heads for group in shape.attention if group.kind is not LayerKind.MLA}
    return all(count % tensor_parallel == 0 or tensor_parallel % count == 0 for count in counts)


def _bytes_per_layer(group: AttentionGroup, width: KvWidth, tensor_parallel: int) -> int:
    if group.kind is LayerKind.MLA:
        return width.bytes_per_vector(group.head_dim)
    num_heads = -(-group.num_kv_heads // tensor_parallel)
    return 2 * num_heads * width.bytes_per_vector(group.head_dim)
