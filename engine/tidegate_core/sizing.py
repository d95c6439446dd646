"""One sizing for three callers: `tidegate plan`, the operator, and the engine with what it measured after loading.

    blocks = floor((usable - weights) / block bytes)
    context = min(asked for, the model's limit, what one sequence may hold)
    slots = floor(blocks x (1 - watermark) / blocks of a p90 sequence)

Pure: bytes in, a Fit with every term out. "Does not fit" is an answer, not an error. docs/sizing.md has the sources.
"""

from collections.abc import Sequence
from dataclasses import replace

from tidegate_core.devices import Spread
from tidegate_core.estimate import Case, estimate
from tidegate_core.fit import BLOCK_SIZE, BlockPlan, Constraint, Demand, Fit, Remedy, RemedyKind, Target
from tidegate_core.memory import free_after_load
from tidegate_core.neighbours import next_larger, next_smaller
from tidegate_core.remedies import fewer_gpus, remedies_for
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
    "Spread",
    "Target",
    "free_after_load",
    "plan_blocks",
    "plan_fit",
    "plan_replica",
]


def plan_fit(shape: ModelShape, target: Target, demand: Demand, storage: Storage | None = None) -> Fit:
    """What a replica of this model on this device can serve, and what would help where that is less than asked."""
    return _explained(_case(shape, target, demand, storage, Spread.of(target)))


def plan_replica(shape: ModelShape, spread: Spread, demand: Demand, storage: Storage | None = None) -> Fit:
    """On as many devices of one node as were asked for, else on the fewest on which it fits.

    Where no node has so many, it does not fit, unless they were asked for: nodes may be made on demand. Where nothing
    is enough, the answer is about the most there are.
    """
    wanted = spread.targets if spread.asked is None else (spread.asked,)
    cases = [_case(shape, target, demand, storage, spread) for target in wanted]
    chosen = next((case for case in cases if estimate(case).fits), None)
    if chosen is None:
        return _explained(_nearest([case for case in cases if spread.has_room_for(case.target)] or cases))
    if spread.has_room_for(chosen.target):
        return _explained(chosen)
    if spread.may_wait_for(chosen.target):
        return _explained(chosen, devices_there=spread.most)
    there = [_case(shape, target, demand, storage, spread) for target in spread.there]
    return _out_of_reach(chosen, there, spread.most)


def _case(shape: ModelShape, target: Target, demand: Demand, storage: Storage | None, spread: Spread) -> Case:
    more = tuple(each for each in spread.there if each.tensor_parallel > target.tensor_parallel)
    return Case(shape, target, demand, storage or storage_of(shape), more)


def _nearest(cases: Sequence[Case]) -> Case:
    """Of those of which none fits: on the most devices, where more help. What cannot be divided says no bytes."""
    if estimate(cases[0]).binding_constraint is Constraint.MODEL_CONTEXT:
        return cases[0]
    return next((case for case in reversed(cases) if case.is_divisible), cases[-1])


def _explained(case: Case, devices_there: int | None = None) -> Fit:
    fit = replace(estimate(case), devices_there=devices_there)
    explained = replace(fit, statement=statement(fit), remedies=remedies_for(fit, case))
    return replace(explained, smaller=next_smaller(case), larger=next_larger(case))


def _out_of_reach(wanted: Case, there: Sequence[Case], most: int | None) -> Fit:
    """The numbers are those of what it takes, the ways out those of what nodes have."""
    fit = replace(estimate(wanted), fits=False, slots=0, binding_constraint=Constraint.DEVICES, devices_there=most)
    best = next((case for case in there if estimate(case).fits), None)
    nearest = _nearest(there)
    remedies = fewer_gpus(best) if best else remedies_for(estimate(nearest), nearest)
    return replace(fit, statement=statement(fit), remedies=remedies)
