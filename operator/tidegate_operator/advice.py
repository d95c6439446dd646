"""What to change where replicas run out of memory and more of them would not help: numbers for a person. Pure.

Called by plan.py for a pool whose scaler has seen preemptions persist with nobody waiting. The numbers are those of
the template, so that the advice stands still while load comes and goes.
"""

from dataclasses import replace

from tidegate_core.fit import Demand, Fit
from tidegate_core.quantity import format_bytes
from tidegate_core.shape import ModelShape
from tidegate_core.storage import KV_8BIT
from tidegate_operator.api.model import KvCacheDtype
from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.devices import PoolDevice, find_device
from tidegate_operator.fitting import demand, plan_cached, storage, target
from tidegate_operator.observed import Node


def resize_advice(pool: InferencePool, shape: ModelShape, fit: Fit, nodes: tuple[Node, ...] | None) -> str:
    """Empty where the device is not known any more."""
    device = find_device(pool, nodes)
    if not isinstance(device, PoolDevice):
        return ""
    ways = [*_narrower_kv(pool, shape, device), *_fewer_slots(pool, shape, fit, device)]
    if fit.context > 2 * fit.context_smallest:
        ways.append(f"lower context.max from {fit.context:,} where requests need not be that long")
    pool_size = f"{fit.kv_blocks:,} blocks ({format_bytes(fit.kv_pool_bytes)}) of KV cache"
    said = f"requests are preempted although none waits: {fit.slots:,} slots outgrow {pool_size}"
    said += ", so more replicas would not help"
    return f"{said}; {'; or '.join(ways)}"


def _narrower_kv(pool: InferencePool, shape: ModelShape, device: PoolDevice) -> list[str]:
    kept = storage(pool, shape)
    if kept.kv_width == KV_8BIT:
        return []
    narrow = plan_cached(shape, target(pool, device), demand(pool), replace(kept, kv_width=KV_8BIT), None)
    return [f"set model.kvCacheDtype to {KvCacheDtype.INT8} ({narrow.kv_blocks:,} blocks)"]


def _fewer_slots(pool: InferencePool, shape: ModelShape, fit: Fit, device: PoolDevice) -> list[str]:
    """Slots follow from the traffic: requests that are told to be half as long again take fewer."""
    usual = demand(pool)
    longer = Demand(usual.context_max, usual.context_min, usual.prompt_tokens * 3 // 2, usual.output_tokens * 3 // 2)
    fewer = plan_cached(shape, target(pool, device), longer, storage(pool, shape), None)
    if fewer.slots >= fit.slots:
        return []
    lengths = f"{usual.prompt_tokens:,} and {usual.output_tokens:,}"
    raised = f"raise traffic.promptTokens and traffic.outputTokens from {lengths}"
    return [f"{raised} to what requests have (half as many again give {fewer.slots:,} slots)"]
