"""Solves blocks, context and slots: the arithmetic between free bytes and an answer.

`sizing.plan_fit` calls it with estimated bytes and the engine with measured ones, so both come to the same layout.
"""

from tidegate_core.fit import BlockPlan, Demand, Target
from tidegate_core.kv import kv_block_bytes, kv_demand
from tidegate_core.kv_demand import KvDemand
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
        block_bytes=kv_block_bytes(shape, width, target.tensor_parallel),
        kv=kv_demand(shape),
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
    kv: KvDemand,
    wanted: int,
    smallest: int,
    p90_tokens: int,
    max_slots: int | None = None,
) -> BlockPlan:
    """One sequence of the whole context always fits; slots x context need not, that is admission's business."""
    num_blocks = max(0, free_bytes) // block_bytes
    context = kv.longest_sequence(num_blocks, wanted)
    if context < smallest:
        return BlockPlan(num_blocks, block_bytes, context, slots=0)
    usual_tokens = num_blocks * kv.block_size * (1 - WATERMARK)
    slots = max(1, int(usual_tokens / kv.slot_tokens(min(p90_tokens, context))))
    return BlockPlan(num_blocks, block_bytes, context, min(slots, max_slots or slots))
