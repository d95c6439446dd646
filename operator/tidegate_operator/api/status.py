"""What the operator found, chose and did. It changes only when something a reader would act on changes.

Live figures (queue, tokens a second) are metrics, not status. `scaler` is the scaler's memory: written with its
decisions, so that a restarted operator neither shrinks nor orders twice.
"""

from datetime import UTC, datetime
from typing import Self

from pydantic import Field

from tidegate_core.samples import Memory
from tidegate_operator.api.base import ApiModel, Timestamp
from tidegate_operator.api.conditions import Condition, ConditionType

MAX_SCALING_HISTORY = 10


class ModelStatus(ApiModel):
    """The model as it was inspected."""

    architecture: str
    """Class name from the model's configuration."""
    parameters: int
    """Number of weights, tied ones once."""
    weight_bytes: int
    """Size of all weights as the engine keeps them."""
    kv_bytes_per_token: int
    """KV cache of one token over all layers that grow."""
    max_context: int
    """Longest sequence the model was made for."""
    fingerprint: str
    """Changes when the files do."""
    revision: str | None = None
    """Commit of a hub's model that the pods have, whatever its branch says by now."""


class SizingOption(ApiModel):
    """The same replica on another device."""

    name: str = Field(max_length=128)
    """The device."""
    memory_bytes: int
    """Its memory."""
    context: int
    """Longest sequence it would serve; 0 where the model does not fit."""
    slots: int
    """Most requests it would run at once; 0 where the model does not fit."""


class SizingBasis(ApiModel):
    """What was sized: engines with the same basis can be compared."""

    architecture: str = Field(max_length=128)
    """The model's."""
    dtype: str = Field(max_length=32)
    """What weights are kept in."""
    accelerator: str = Field(max_length=253)
    """Product of the device, or its resource where no node says more."""
    tensor_parallel: int = 1
    """Devices a replica is spread over."""
    loaded_percent: int = 100
    """What engines of an earlier template measured of runtime and weights, in percent of the estimate; it is counted
    in."""


class LearnedSizing(ApiModel):
    """How much of their device engines had taken once weights were loaded, beside what was estimated."""

    architecture: str = Field(max_length=128)
    """The model's."""
    dtype: str = Field(max_length=32)
    """What weights are kept in."""
    accelerator: str = Field(max_length=253)
    """As in sizing.basis."""
    tensor_parallel: int = 1
    """As in sizing.basis."""
    engine: str = Field(max_length=1024)
    """Image of the engine."""
    loaded_percent: int
    """Runtime and weights as measured, in percent of the estimate."""


class SizingStatus(ApiModel):
    """What fits one replica, term by term. Bytes are per device."""

    fits: bool
    """Whether one sequence of context.min fits."""
    binding_constraint: str
    """What limits context and slots."""
    remedies: tuple[str, ...] = Field(default=(), max_length=16)
    """What would give more room, cheapest first."""
    smaller: SizingOption | None = None
    """What the next smaller device would give; for cpu pools half the memory."""
    larger: SizingOption | None = None
    """What the next larger device would give; for cpu pools twice the memory."""
    basis: SizingBasis | None = None
    """What was sized, and what was known of such engines."""
    memory_bytes: int
    """Memory of the device."""
    unused_share_bytes: int | None = None
    """Left to what nobody counts."""
    runtime_bytes: int
    """Taken by the driver's context and the process, with what engines measured beyond the estimate."""
    collectives_bytes: int | None = None
    """Communication buffers of a replica on several devices."""
    activation_bytes: int
    """Peak of one step's intermediate results."""
    logits_bytes: int
    """Peak of the sampling step."""
    graphs_bytes: int | None = None
    """Captured kernels."""
    reserve_bytes: int
    """Kept free against fragmentation."""
    loading_bytes: int = 0
    """Parts in flight while weights are loaded, before there is a KV pool."""
    weight_bytes: int
    """Weights on this device."""
    kv_bytes_per_token: int
    """KV cache of one token on this device."""
    kv_fixed_bytes_per_sequence: int
    """KV cache that a sequence holds whatever its length."""
    kv_pool_bytes: int | None = None
    """The KV pool, computed."""
    kv_blocks: int
    """Blocks of the KV pool, computed."""
    measured_kv_blocks: int | None = None
    """Blocks of the KV pool, as the engines report them: the fewest of all replicas."""
    measured_loaded_bytes: int | None = None
    """Runtime and weights of one device as the engines measured them after loading, the most of all replicas; to be
    compared with runtimeBytes and weightBytes together."""
    context: int
    """Longest sequence served."""
    slots: int
    """Most requests running at once on one replica."""
    tensor_parallel: int
    """Devices of one node that a replica is spread over, or would take where it does not fit."""
    resident_bytes: int
    """Private host memory of the engine's processes, one for each device."""


class ColdStartPhases(ApiModel):
    """Where the time goes until a new replica serves, in seconds."""

    schedule_seconds: int = Field(ge=0)
    """From the pod's creation until it had a node."""
    image_seconds: int = Field(ge=0)
    """From there until its container ran: volumes, network and image, without downloads."""
    download_seconds: int = Field(ge=0)
    """In init containers, which download a model that no volume has."""
    load_seconds: int = Field(ge=0)
    """From the engine's start until weights and KV pool were in memory, by its own clock."""
    warm_up_seconds: int = Field(ge=0)
    """First steps of the engine, by its own clock."""


class ColdStartSample(ColdStartPhases):
    """One pod's way."""

    pod: str = Field(max_length=253)
    """Name of the pod."""
    template: str = Field(max_length=63)
    """Hash of the template it was made from."""
    created: Timestamp
    """When it was created."""
    seconds: int = Field(ge=0)
    """From then until it served."""


class ColdStartStatus(ApiModel):
    """How long new replicas take until they serve, measured once a pod; the scaler orders that much ahead."""

    p90_seconds: int = Field(ge=0)
    """90th percentile of the whole."""
    phases: ColdStartPhases
    """90th percentile of each phase."""
    measured: tuple[ColdStartSample, ...] = Field(
        default=(), max_length=10, json_schema_extra={"x-kubernetes-list-type": "atomic"}
    )
    """The pods behind it, newest first: the last ten of the newest template that served."""


class CostStatus(ApiModel):
    """What the pool's replicas cost while they exist, by the operator's price list."""

    per_hour: str = Field(max_length=32)
    """An hour of all replicas with a price, as a decimal number in the price list's currency."""
    basis: str = Field(max_length=1024)
    """Which replicas, at which price; which have none."""


class ScalingEvent(ApiModel):
    """One change of the wanted number of replicas."""

    time: Timestamp
    """When it was decided."""
    from_: int = Field(alias="from")
    """Replicas wanted before."""
    to: int
    """Replicas wanted after."""
    reason: str = Field(max_length=1024)
    """One line with the numbers that decided."""
    inputs: dict[str, str] = Field(default={})
    """The scaler's view at that moment: name and value, rounded for reading."""


class ScalerStatus(ApiModel):
    """What the scaler must remember over a restart."""

    last_scale_up: Timestamp | None = None
    """When replicas were last added."""
    last_scale_down: Timestamp | None = None
    """When a replica was last removed."""
    panic_until: Timestamp | None = None
    """Until when an overload keeps the size from falling."""
    strain_requests_per_hour: int | None = None
    """Arrivals at one replica at which the pool last proved too small; fewer replicas must stay well below."""
    strain_time: Timestamp | None = None
    """When that was seen."""

    @classmethod
    def of(cls, memory: Memory) -> Self:
        """The part of the memory that is kept."""
        strain = memory.strain_per_second
        return cls(
            last_scale_up=_moment(memory.last_scale_up),
            last_scale_down=_moment(memory.last_scale_down),
            panic_until=_moment(memory.panic_until),
            strain_requests_per_hour=None if strain is None else max(1, round(strain * 3600)),
            strain_time=_moment(memory.strain_time),
        )

    def memory(self, desired: int) -> Memory:
        """The memory of a restarted scaler; what is not kept makes it hold first."""
        strain = self.strain_requests_per_hour
        return Memory(
            desired=desired,
            last_scale_up=_seconds(self.last_scale_up),
            last_scale_down=_seconds(self.last_scale_down),
            panic_until=_seconds(self.panic_until),
            strain_per_second=None if strain is None else strain / 3600,
            strain_time=_seconds(self.strain_time),
        )


class GivenUp(ApiModel):
    """A change that was taken back, and why."""

    reason: str = Field(max_length=64)
    """As in conditions: OutOfMemory, ImageUnavailable, EngineFailing, PodsRefused, ProgressDeadlineExceeded."""
    message: str = Field(max_length=1024)
    """The last words of whoever failed."""


class RolloutStatus(ApiModel):
    """How pods of an older template are replaced, or were the last time."""

    strategy: str = Field(max_length=16)
    """Surge or Replace."""
    reason: str = Field(default="", max_length=512)
    """Why that one, as of the beginning of the rollout."""
    revision: int
    """Number of the template that serves or is being rolled out."""
    given_up: GivenUp | None = None
    """Why the spec's own template is not the one that serves; until the spec changes."""


class EngineStatus(ApiModel):
    """Which engine runs."""

    image: str = Field(max_length=512)
    """Image of the template that serves or is being rolled out."""
    available_image: str | None = Field(default=None, max_length=512)
    """Image that the next rollout would bring, where it is another."""


def _moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).replace(microsecond=0)


def _seconds(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()


class InferencePoolStatus(ApiModel):
    """The finding. Written by the operator only."""

    observed_generation: int = Field(default=0, ge=0)
    """The spec's generation this status is about."""
    conditions: tuple[Condition, ...] = Field(
        default=(),
        max_length=32,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    """Ready, Reconciling, Stalled and the findings behind them."""
    model: ModelStatus | None = None
    """The inspected model."""
    sizing: SizingStatus | None = None
    """Computed and measured for the replicas that are deployed; for the spec where nothing that fits ever was."""
    learned_sizing: tuple[LearnedSizing, ...] = Field(
        default=(), max_length=8, json_schema_extra={"x-kubernetes-list-type": "atomic"}
    )
    """What engines of this pool measured, newest first. The next template counts it in; nothing rolls because of it."""
    rollout: RolloutStatus | None = None
    """The current or last rollout."""
    engine: EngineStatus | None = None
    """The engine's version, running and available."""
    replicas: int = Field(default=0, ge=0)
    """Replicas that exist and are not leaving."""
    ready_replicas: int = Field(default=0, ge=0)
    """Replicas that serve."""
    updated_replicas: int = Field(default=0, ge=0)
    """Replicas of the current template."""
    desired_replicas: int = Field(default=0, ge=0)
    """Replicas that are wanted now."""
    ready: str | None = None
    """Ready and wanted replicas, for the table: 3/3."""
    phase: str | None = None
    """Conditions in one word, for the table."""
    selector: str | None = None
    """Label selector of the pods, for autoscalers and `kubectl scale`."""
    scaling_history: tuple[ScalingEvent, ...] = Field(
        default=(), max_length=MAX_SCALING_HISTORY, json_schema_extra={"x-kubernetes-list-type": "atomic"}
    )
    """The last changes of the wanted size, newest first."""
    scaler: ScalerStatus | None = None
    """The scaler's memory."""
    cold_start: ColdStartStatus | None = None
    """How long new replicas take until they serve. Absent until one was measured."""
    cost: CostStatus | None = None
    """What the replicas cost. Absent where the operator has no price for any of them."""
    endpoint: str | None = None
    """Base URL of the OpenAI API inside the cluster."""

    def condition(self, type_: ConditionType) -> Condition | None:
        """The condition of that type, if it was written."""
        return next((condition for condition in self.conditions if condition.type == type_), None)
