"""Bytes that keys and values take: per token where layers grow with the sequence, per sequence where they do not."""

from tidegate_core.shape import AttentionGroup, LayerKind, ModelShape
from tidegate_core.storage import KvWidth


def kv_bytes_per_token(shape: ModelShape, width: KvWidth, tensor_parallel: int = 1) -> int:
    """Of one device, over all layers that grow.

    Heads are divided between devices, and replicated where there are fewer heads than devices. An MLA latent serves all
    heads, so each device holds all of it. Window layers count like full ones: the block pool frees blocks when a
    sequence ends and not before, so a window saves no memory.
    """
    return sum(group.num_layers * _bytes_per_layer(group, width, tensor_parallel) for group in shape.attention)


def kv_fixed_bytes_per_sequence(shape: ModelShape) -> int:  # noqa: ARG001 - callers need not know that it is constant
    """What a running sequence takes whatever its length: nothing, since every kind of layer grows.

    A pool that frees blocks outside the window would take window layers out of `kv_bytes_per_token` and count here
    `window` tokens of each.
    """
    return 0


def _bytes_per_layer(group: AttentionGroup, width: KvWidth, tensor_parallel: int) -> int:
    if group.kind is LayerKind.MLA:
        return width.bytes_per_vector(group.head_dim)
    num_heads = -(-group.num_kv_heads // tensor_parallel)
    return 2 * num_heads * width.bytes_per_vector(group.head_dim)
