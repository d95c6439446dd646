"""What to change where replicas run out of memory and more of them would not help: numbers for a person. Pure.

Called by planning.py for a pool whose scaler has seen preemptions persist with nobody waiting. The numbers are those of
the template, so that the advice stands still while load comes and goes.
"""

from dataclasses import replace

from tidegate_core.devices import Spread
from tidegate_core.fit import Demand, Fit, Target
from tidegate_core.quantity import format_bytes
from tidegate_core.shape import ModelShape
from tidegate_core.storage import KV_8BIT
from tidegate_operator.api.model import KvCacheDtype
from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.sizing.fitting import FitFinding, demand, plan_cached, storage, target


def resize_advice(pool: InferencePool, shape: ModelShape, found: FitFinding) -> str:
    """Empty where nothing is known of the device any more."""
    fit = found.fit
    if fit is None or found.basis is None or found.device is None:
        return ""
    on = target(pool, found.device, found.basis.loaded_percent)
    ways = [*_narrower_kv(pool, shape, on), *_fewer_slots(pool, shape, fit, on)]
    if fit.context > 2 * fit.context_smallest:
        ways.append(f"lower context.max from {fit.context:,} where requests need not be that long")
    pool_size = f"{fit.kv_blocks:,} blocks ({format_bytes(fit.kv_pool_bytes)}) of KV cache"
    said = f"requests are preempted although none waits: {fit.slots:,} slots outgrow {pool_size}"
    said += ", so more replicas would not help"
    return f"{said}; {'; or '.join(ways)}"


def _narrower_kv(pool: InferencePool, shape: ModelShape, on: Target) -> list[str]:
    kept = storage(pool, shape)
    if kept.kv_width == KV_8BIT:
        return []
    narrow = plan_cached(shape, Spread((on,)), demand(pool), replace(kept, kv_width=KV_8BIT))
    return [f"set model.kvCacheDtype to {KvCacheDtype.INT8} ({narrow.kv_blocks:,} blocks)"]


def _fewer_slots(pool: InferencePool, shape: ModelShape, fit: Fit, on: Target) -> list[str]:
    """Slots follow from the traffic: requests that are told to be half as long again take fewer."""
    usual = demand(pool)
    longer = Demand(usual.context_max, usual.context_min, usual.prompt_tokens * 3 // 2, usual.output_tokens * 3 // 2)
    fewer = plan_cached(shape, Spread((on,)), longer, storage(pool, shape))
    if fewer.slots >= fit.slots:
        return []
    lengths = f"{usual.prompt_tokens:,} and {usual.output_tokens:,}"
    raised = f"raise traffic.promptTokens and traffic.outputTokens from {lengths}"
    return [f"{raised} to what requests have (half as many again give {fewer.slots:,} slots)"]
