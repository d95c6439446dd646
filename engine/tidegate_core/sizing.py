"""One sizing for three callers: `tidegate plan`, the operator, and the engine with what it measured after loading.

    blocks = floor((usable - weights) / block bytes)
    context = min(asked for, the model's limit, what one sequence may hold)
    slots = floor(blocks x (1 - watermark) / blocks of a p90 sequence)

Pure: bytes in, a Fit with every term out. "Does not fit" is an answer, not an error. docs/sizing.md has the sources.
"""

from dataclasses import replace

from tidegate_core.accelerator import Device
from tidegate_core.devices import fewest_devices, is_served
from tidegate_core.estimate import Case, estimate
from tidegate_core.fit import BLOCK_SIZE, BlockPlan, Constraint, Demand, Fit, Remedy, RemedyKind, Target
from tidegate_core.memory import free_after_load
from tidegate_core.neighbours import next_larger, next_smaller
from tidegate_core.remedies import remedies_for
from tidegate_core.report import statement
from tidegate_core.shape import ModelShape
from tidegate_core.solve import WATERMARK, plan_blocks
from tidegate_core.storage import Storage, storage_of

__all__ = [
    "BLOCK_SIZE",
    "WATERMARK",
    "BlockPlan",
    "Constraint",
    "Demand",
    "Fit",
    "Remedy",
    "RemedyKind",
    "Target",
    "free_after_load",
    "plan_blocks",
    "plan_fit",
    "plan_replica",
]


def plan_fit(shape: ModelShape, target: Target, demand: Demand, storage: Storage | None = None) -> Fit:
    """What a replica of this model on this device can serve, and what would help where that is less than asked."""
    return _explained(Case(shape, target, demand, storage or storage_of(shape)))


def plan_replica(
    shape: ModelShape, target: Target, demand: Demand, storage: Storage | None = None, *, num_devices: int | None = None
) -> Fit:
    """On so many devices of one node, or (None) on the fewest on which it fits.

    Where that is more than the engine serves it does not fit, and `devices_needed` says how many it would take.
    """
    case = Case(shape, target, demand, storage or storage_of(shape))
    if num_devices is not None:
        return _refused_beyond_served(_explained(case.on(num_devices)))
    first = case.on(1)
    if target.device == Device.CPU or estimate(first).fits:
        return _explained(first)
    needed = fewest_devices(first)
    if needed is not None and is_served(needed):
        return _explained(case.on(needed))
    return replace(_explained(first), devices_needed=needed)


def _explained(case: Case) -> Fit:
    fit = estimate(case)
    explained = replace(fit, statement=statement(fit), remedies=remedies_for(fit, case))
    return replace(explained, smaller=next_smaller(case), larger=next_larger(case))


def _refused_beyond_served(fit: Fit) -> Fit:
    if not fit.fits or is_served(fit.tensor_parallel):
        return fit
    refused = replace(
        fit, fits=False, slots=0, binding_constraint=Constraint.DEVICES, devices_needed=fit.tensor_parallel
    )
    return replace(refused, statement=statement(refused))
