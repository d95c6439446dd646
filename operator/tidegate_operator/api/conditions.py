"""Conditions of a pool, in the manner of kstatus: Ready always, Reconciling and Stalled only while true."""

from enum import StrEnum
from typing import Literal

from pydantic import Field

from tidegate_operator.api.base import ApiModel, Timestamp

ConditionStatus = Literal["True", "False", "Unknown"]


class ConditionType(StrEnum):
    """Which question a condition answers."""

    READY = "Ready"  # does the pool serve with all the replicas it wants?
    RECONCILING = "Reconciling"  # is something under way? (absent when not)
    STALLED = "Stalled"  # is a person needed? (absent when not)
    MODEL_RESOLVED = "ModelResolved"  # is the model's shape known?
    MODEL_CACHED = "ModelCached"  # is the model in the pool's cache? (pools with spec.cache)
    FITS = "Fits"  # does the model fit the accelerator?
    AVAILABLE = "Available"  # does at least one replica serve?
    PROGRESSING = "Progressing"  # do the pods move towards the current template?
    METRICS_AVAILABLE = "MetricsAvailable"  # does the scaler see its replicas?
    RESIZE_ADVISED = "ResizeAdvised"  # should replicas be sized anew? (absent when not)
    SCALING_LIMITED = "ScalingLimited"  # is the scaler kept from what it wants?
    NODES_FAILING = "NodesFailing"  # do pods fail again and again on the same nodes? (absent when not)
    INTEGRATED = "Integrated"  # do the neighbours fit? (absent where none was asked for and none disturbs)


BAD_WHEN_TRUE = frozenset(
    (
        ConditionType.RECONCILING,
        ConditionType.STALLED,
        ConditionType.RESIZE_ADVISED,
        ConditionType.SCALING_LIMITED,
        ConditionType.NODES_FAILING,
    )
)  # of all others True is good


class Condition(ApiModel):
    """One observation of the pool."""

    type: str = Field(max_length=64)
    """What is observed."""
    status: ConditionStatus
    """True, False or Unknown."""
    reason: str = Field(max_length=128, pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")
    """One CamelCase word, listed in the API reference."""
    message: str = Field(default="", max_length=32768)
    """What happened, to which object, what to do."""
    observed_generation: int = Field(default=0, ge=0)
    """The spec's generation this was seen for."""
    last_transition_time: Timestamp
    """When status last changed."""
