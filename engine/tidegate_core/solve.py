"""Solves blocks, context and slots: the arithmetic between free bytes and an answer.

`sizing.plan_fit` calls it with estimated bytes and the engine with measured ones, so both come to the same layout.
"""

from bisect import bisect_left

from tidegate_core.fit import BLOCK_SIZE, BlockPlan, Demand, Target
from tidegate_core.kv import kv_bytes_per_token, kv_fixed_bytes_per_sequence
from tidegate_core.shape import ModelShape
from tidegate_core.storage import Storage, storage_of

WATERMARK = 0.05  # share of the pool that p90 sequences leave free, because some sequences are longer
DEFAULT_MIN_CONTEXT = 2048


def plan_blocks(
    shape: ModelShape, target: Target, demand: Demand, free_bytes: int, storage: Storage | None = None
) -> BlockPlan:
    """Lays out a KV pool in `free_bytes` of one device; 0 slots say that the smallest context does not fit."""
    width = (storage or storage_of(shape)).kv_width
    return lay_out(
        free_bytes,
        block_bytes=BLOCK_SIZE * kv_bytes_per_token(shape, width, target.tensor_parallel),
        fixed_bytes=kv_fixed_bytes_per_sequence(shape),
        wanted=wanted_context(shape, demand),
        smallest=smallest_context(shape, demand),
        p90_tokens=demand.prompt_tokens + demand.output_tokens,
        max_slots=demand.max_slots,
    )


def wanted_context(shape: ModelShape, demand: Demand) -> int:
    """The longest sequence that is asked for and that the model knows."""
    return min(demand.context_max or shape.max_context, shape.max_context)


def smallest_context(shape: ModelShape, demand: Demand) -> int:
    """The shortest context worth serving."""
    return demand.context_min or min(DEFAULT_MIN_CONTEXT, wanted_context(shape, demand))


def lay_out(
    free_bytes: int,
    *,
    block_bytes: int,
    fixed_bytes: int,
    wanted: int,
    smallest: int,
    p90_tokens: int,
    max_slots: int | None = None,
) -> BlockPlan:
    """Blocks and slots together, since each slot takes its fixed bytes from the blocks.

    One sequence of the whole context always fits; slots x context need not, that is admission's business.
    """

    def tokens_beside(num_slots: int) -> int:
        return max(0, free_bytes - num_slots * fixed_bytes) // block_bytes * BLOCK_SIZE

    def is_enough_for(num_slots: int) -> bool:
        tokens = tokens_beside(num_slots)
        return tokens >= context and num_slots * p90_tokens <= tokens * (1 - WATERMARK)

    context = min(wanted, tokens_beside(1))
    if context < smallest:
        return BlockPlan(tokens_beside(1) // BLOCK_SIZE, block_bytes, context, slots=0)
    p90_tokens = min(p90_tokens, context)
    candidates = range(1, tokens_beside(1) // p90_tokens + 1)
    slots = max(1, bisect_left(candidates, x=True, key=lambda num_slots: not is_enough_for(num_slots)))
    slots = min(slots, max_slots or slots)
    return BlockPlan(tokens_beside(slots) // BLOCK_SIZE, block_bytes, context, slots)
