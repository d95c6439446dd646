"""One sizing for three callers: `tidegate plan`, the operator, and the engine with what it measured after loading.

    blocks = floor((usable - weights) / block bytes)
    context = min(asked for, the model's limit, what one sequence may hold)
    slots = floor(blocks x (1 - watermark) / blocks of a p90 sequence)

Pure: bytes in, a Fit with every term out. "Does not fit" is an answer, not an error. docs/sizing.md has the sources.
"""

from dataclasses import replace

from tidegate_core.estimate import Case, estimate
from tidegate_core.fit import BLOCK_SIZE, BlockPlan, Constraint, Demand, Fit, Remedy, RemedyKind, Target
from tidegate_core.memory import free_after_load
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
]


def plan_fit(shape: ModelShape, target: Target, demand: Demand, storage: Storage | None = None) -> Fit:
    """What a replica of this model on this device can serve, and what would help where that is less than asked."""
    case = Case(shape, target, demand, storage or storage_of(shape))
    fit = estimate(case)
    return replace(fit, statement=statement(fit), remedies=remedies_for(fit, case))
