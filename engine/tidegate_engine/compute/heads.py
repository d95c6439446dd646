"""What becomes of a layer's projected heads before it attends: queries and keys are rotated, keys and values stored.

Called once a layer by PagedStep; on CPU a kernel does it in one pass (cpu_kernels/head_placement.py).
"""

import torch

from tidegate_engine.attention.base import AttentionInputs
from tidegate_engine.attention.once_a_step import once_a_step
from tidegate_engine.attention.pages import KvPages
from tidegate_engine.compute.rope import Rotation, rotate
from tidegate_engine.cpu_kernels import catalog


def placed(
    heads: torch.Tensor, values: torch.Tensor, rotation: Rotation, pages: KvPages, inputs: AttentionInputs
) -> torch.Tensor:
    """Queries, in one piece, of [tokens, query and key heads, head_dim]; keys and values are in `pages` then."""
    kernel = None if heads.is_cuda else catalog.head_placement(pages.data.dtype)
    if kernel is None or not kernel.serves(heads, values):
        return plain_placed(heads, values, rotation, pages, inputs)
    return kernel(heads, values, rotation, inputs.slot_mapping, pages)


def plain_placed(
    heads: torch.Tensor, values: torch.Tensor, rotation: Rotation, pages: KvPages, inputs: AttentionInputs
) -> torch.Tensor:
    """The same in steps that exist everywhere."""
    num_queries = heads.shape[1] - pages.num_kv_heads
    queries, keys = rotate(heads, rotation).tensor_split((num_queries,), 1)
    key_rows, value_rows = _rows(inputs, pages.block_size)
    pages.write(key_rows, keys)
    pages.write(value_rows, values)
    return queries.contiguous()


@once_a_step
def _rows(inputs: AttentionInputs, block_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Where the step's keys and values stand in a layer seen as [num_blocks * 2 * block_size] rows."""
    slots = inputs.slot_mapping
    key_rows = slots + slots // block_size * block_size
    return key_rows, key_rows + block_size
