"""What is worth telling about a pool: notes that become Events. Pure.

A note tells a person what changed and why; what holds now stands in status.
"""

from dataclasses import dataclass
from typing import Literal

from tidegate_operator.api.conditions import BAD_WHEN_TRUE, Condition, ConditionType
from tidegate_operator.api.reasons import Reason
from tidegate_operator.api.status import InferencePoolStatus

_TOLD = (
    ConditionType.READY, ConditionType.STALLED, ConditionType.MODEL_RESOLVED, ConditionType.FITS,
    ConditionType.PROGRESSING, ConditionType.SCALING_LIMITED, ConditionType.METRICS_AVAILABLE,
    ConditionType.RESIZE_ADVISED,
    ConditionType.INTEGRATED, ConditionType.NODES_FAILING,
)  # fmt: skip
_QUIET = (Reason.INSPECTING, Reason.RECONCILING, Reason.SCALING_MANUAL, Reason.WITHIN_BOUNDS, Reason.UP_TO_DATE)


@dataclass(frozen=True)
class Note:
    """One thing worth telling."""

    reason: str  # a Reason
    message: str
    kind: Literal["Normal", "Warning"] = "Normal"


def transition_notes(before: InferencePoolStatus, after: InferencePoolStatus) -> tuple[Note, ...]:
    """One note for each condition whose status or reason changed into something a person wants to hear of."""
    told: dict[str, Note] = {}
    for kind in _TOLD:
        old, new = before.condition(kind), after.condition(kind)
        if new is not None and _is_news(old, new):
            told.setdefault(new.reason, Note(new.reason, new.message, _kind(new)))
    return tuple(told.values())


def _is_news(old: Condition | None, new: Condition) -> bool:
    is_same = old is not None and (old.status, old.reason) == (new.status, new.reason)
    is_waiting = new.type == ConditionType.READY and new.status != "True"  # its cause is told by the cause's condition
    is_first_good_sample = new.reason == Reason.METRICS_FRESH and (old is None or old.status != "False")
    return not (is_same or is_waiting or is_first_good_sample or new.reason in _QUIET)


def _kind(condition: Condition) -> Literal["Normal", "Warning"]:
    bad_when = "True" if condition.type in BAD_WHEN_TRUE else "False"
    return "Warning" if condition.status == bad_when else "Normal"
