"""What a pool's engines measured after loading, beside what was planned, and what its next template makes of it. Pure.

    loadedPercent = (runtime + weights) of a device as measured / as estimated
                    of an architecture, dtype, accelerator, number of devices and engine

It is kept in the pool's status and enters a template only when the user causes a new one: nothing rolls because
something was learned. docs/adr/20261129-learned-sizing.md says why it is the pool's own.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from tidegate_core.telemetry import EngineSizing, LoadReport
from tidegate_operator.api.spec import CPU_RESOURCE
from tidegate_operator.api.status import EngineStatus, LearnedSizing, SizingBasis, SizingStatus
from tidegate_operator.world.observed import Pod

MAX_LEARNED = 8
_FEWEST_PERCENT, _MOST_PERCENT = 50, 200  # beyond that something else is wrong
_STEP_PERCENT = 3  # what engines differ in from start to start teaches nothing
_STEADY_SHARE = 0.02


@dataclass(frozen=True)
class Experience:
    """What sizing takes into account. The last two are of a template that is there: what it was planned with."""

    engine: str = ""  # its image
    learned: tuple[LearnedSizing, ...] = ()
    applied: int | None = None
    num_devices: int | None = None

    @classmethod
    def of_template(cls, sizing: SizingStatus) -> Self:
        """What is known by now says nothing about it."""
        percent = sizing.basis.loaded_percent if sizing.basis else 100
        return cls(applied=percent, num_devices=sizing.tensor_parallel)

    def percent(self, basis: SizingBasis) -> int:
        """Of the estimate for runtime and weights."""
        if self.applied is not None:
            return self.applied
        return next((each.loaded_percent for each in self.learned if _is_of(each, basis, self.engine)), 100)


NO_EXPERIENCE = Experience()


def with_measured(
    planned: SizingStatus,
    before: SizingStatus | None,
    template: str,
    pods: tuple[Pod, ...],
    loads: Mapping[str, LoadReport],
) -> SizingStatus:
    """The sizing of a template with what its engines report.

    A missing report takes no figure away, a new template does: the old engines' figures are not its own.
    """
    names = {pod.name for pod in pods if pod.template == template}
    found = [load.sizing for name, load in loads.items() if name in names]
    known = before if before is not None and names and _without_measured(before) == planned else None
    return planned.model_copy(
        update={"measured_kv_blocks": _fewest_blocks(found, known), "measured_loaded_bytes": _most_bytes(found, known)}
    )


def learn(
    known: tuple[LearnedSizing, ...], sizing: SizingStatus | None, running: EngineStatus | None
) -> tuple[LearnedSizing, ...]:
    """The newest first; unchanged where nothing differs by more than engines do from start to start."""
    if running is None or sizing is None or sizing.basis is None or sizing.measured_loaded_bytes is None:
        return known
    basis, engine = sizing.basis, running.image
    estimated = (sizing.runtime_bytes + sizing.weight_bytes) * 100 // basis.loaded_percent
    percent = min(max(-(-100 * sizing.measured_loaded_bytes // estimated), _least(basis)), _MOST_PERCENT)
    same = next((each for each in known if _is_of(each, basis, engine)), None)
    if abs(percent - (same.loaded_percent if same else 100)) < _STEP_PERCENT:
        return known
    newest = LearnedSizing(
        architecture=basis.architecture, dtype=basis.dtype, accelerator=basis.accelerator,
        tensor_parallel=basis.tensor_parallel, engine=engine, loaded_percent=percent,
    )  # fmt: skip
    return (newest, *(each for each in known if each is not same))[:MAX_LEARNED]


def _least(basis: SizingBasis) -> int:
    """On CPU memory that is not there after loading still comes: the estimate is a floor."""
    return 100 if basis.accelerator == CPU_RESOURCE else _FEWEST_PERCENT


def _is_of(learned: LearnedSizing, basis: SizingBasis, engine: str) -> bool:
    asked = (basis.architecture, basis.dtype, basis.accelerator, basis.tensor_parallel, engine)
    known = (learned.architecture, learned.dtype, learned.accelerator, learned.tensor_parallel, learned.engine)
    return known == asked


def _without_measured(sizing: SizingStatus) -> SizingStatus:
    return sizing.model_copy(update={"measured_kv_blocks": None, "measured_loaded_bytes": None})


def _fewest_blocks(found: list[EngineSizing], known: SizingStatus | None) -> int | None:
    if found:
        return min(each.kv_blocks_total for each in found)
    return known.measured_kv_blocks if known else None


def _most_bytes(found: list[EngineSizing], known: SizingStatus | None) -> int | None:
    """The figure known stays while new ones are about the same: a restart is no news."""
    before = known.measured_loaded_bytes if known else None
    most = max((each.loaded_bytes for each in found), default=0)
    if most == 0 or (before is not None and abs(most - before) <= _STEADY_SHARE * before):
        return before
    return most
