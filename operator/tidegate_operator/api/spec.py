"""What a user asks of a pool. All but `model.uri` may be absent: then it is chosen, and status says what and why.

A docstring under a field is its text in `kubectl explain`; what fields must not contradict stands in rules.py.
"""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from tidegate_operator.api.base import ApiModel, Quantity
from tidegate_operator.api.model import ModelCache, ModelSource
from tidegate_operator.api.pod import PodSettings
from tidegate_operator.api.references import SecretKey

CPU_RESOURCE = "cpu"


class ContextLimits(ApiModel):
    """How long a sequence (prompt and output) may be, in tokens. Sizing may shrink to `min`, never below."""

    max: int | None = Field(default=None, ge=16, le=16_777_216)
    """Longest sequence wanted. Absent: as long as the model allows and memory holds."""
    min: int | None = Field(default=None, ge=16, le=16_777_216)
    """Shortest acceptable length: if not even one sequence of it fits, nothing is deployed. Absent: 2048, or less
    where max or the model is smaller."""


class Traffic(ApiModel):
    """Length of a typical large request (90th percentile); slots and predicted waits are computed from it."""

    prompt_tokens: int = Field(default=900, ge=1, le=16_777_216)
    """Tokens of a prompt."""
    output_tokens: int = Field(default=300, ge=1, le=16_777_216)
    """Tokens of an answer."""


class Accelerator(ApiModel):
    """The device a replica runs on: `count` of `resource`, or the pod's cores for `cpu`."""

    resource: str = Field(default="nvidia.com/gpu", max_length=253)
    """Extended resource of the device plugin, or `cpu`: then the device's memory is the pod's memory limit."""
    count: int | None = Field(default=None, ge=1, le=16)
    """Devices of one replica, all on one node: 1, 2, 4 or 8. Absent: the fewest on which the model fits; where no node
    has so many, the condition Fits says it with numbers, and nothing is deployed. Written, replicas wait for a node
    that has so many."""
    memory: Quantity | None = None
    """Memory of one device, such as 24Gi. Absent: from the nodes' labels; where nodes differ the smallest counts that
    may be scheduled, so name the kind you want in pod.nodeSelector."""

    @property
    def is_cpu(self) -> bool:
        return self.resource == CPU_RESOURCE


class Objectives(ApiModel):
    """What users should feel; admission, step size and scaling work towards it."""

    ttft_milliseconds: int = Field(default=2000, ge=1, le=3_600_000)
    """Time to first token, waiting included."""
    itl_milliseconds: int = Field(default=100, ge=1, le=60_000)
    """Time between two tokens of an answer."""


class ScalingMode(StrEnum):
    """Who decides the number of replicas."""

    AUTO = "Auto"
    MANUAL = "Manual"


class Scaling(ApiModel):
    """How the number of replicas is decided."""

    mode: ScalingMode = ScalingMode.AUTO
    """Auto: Tidegate decides between minReplicas and maxReplicas. Manual: exactly spec.replicas, set by a person,
    `kubectl scale` or another autoscaler."""
    scale_down_hold_seconds: int = Field(default=300, ge=1, le=86_400)
    """How long fewer replicas must have been enough before one is removed."""


class Queue(ApiModel):
    """How much may wait in front of one replica; more is refused with 503 and Retry-After."""

    max_requests: int = Field(default=64, ge=0, le=100_000)
    """Most requests waiting."""
    max_tokens: int | None = Field(default=None, ge=1, le=1_000_000_000)
    """Most prompt tokens waiting. Absent: no bound of their own."""
    max_wait_seconds: int = Field(default=30, ge=1, le=3600)
    """Longest predicted wait that is accepted."""


class Access(ApiModel):
    """Who may use the API, and how callers are told apart."""

    api_keys_secret_ref: SecretKey | None = None
    """Hashed API keys, one a line: `sha256:<digest> [tenant]` (`tidegate api-key` makes one). A changed Secret is read
    again by running pods, nothing restarts. Absent: no key is asked for."""
    trust_fairness_header: bool = False
    """true: only a gateway that sets x-gateway-inference-fairness-id itself can reach the engines, so that header names
    the tenant."""


class EngineUpgrade(StrEnum):
    """Whether running pools take a new operator's engine."""

    PINNED = "Pinned"
    FOLLOW = "Follow"


class Engine(ApiModel):
    """Which engine runs, and what the other fields have no word for."""

    image: str | None = Field(default=None, min_length=1, max_length=512)
    """Image of this pool's engine and inspection pods. Absent: the operator's."""
    upgrade: EngineUpgrade = EngineUpgrade.PINNED
    """Pinned: only a change of this resource replaces pods; an upgraded operator's engine comes with the next one.
    Follow: the pool also rolls when the operator's engine image or engine settings change."""
    extra_args: tuple[Annotated[str, Field(min_length=1, max_length=256)], ...] = Field(
        default=(), max_length=32, json_schema_extra={"x-kubernetes-list-type": "atomic"}
    )
    """More flags of `tidegate serve`, such as --tool-parser=hermes, --prefix-cache=off or, for cpu pools,
    --deterministic. Flags that other fields set are refused."""


class Drain(ApiModel):
    """How a replica leaves."""

    timeout_seconds: int | None = Field(default=None, ge=0, le=3600)
    """How long accepted requests may go on once a replica was chosen to leave. Absent: 120, or longer where one request
    in a hundred was seen to take longer; what was seen counts from the next change of the pods on."""


class RolloutStrategy(StrEnum):
    """How pods of an older template are replaced."""

    SURGE = "Surge"
    REPLACE = "Replace"


class Rollout(ApiModel):
    """How a change reaches the pods, and when it is given up."""

    strategy: RolloutStrategy | None = None
    """Surge: one more replica is started before an old one leaves; it needs a spare accelerator and waits for it.
    Replace: one old replica leaves before its successor starts. Absent: chosen when the rollout begins, Surge where an
    accelerator is free."""
    progress_deadline_seconds: int | None = Field(default=None, ge=10, le=86_400)
    """How long a new replica may take to become ready once it has a node. A template none of whose replicas ever became
    ready goes back to the last good one. Absent: from the size of the weights."""


class FailureMode(StrEnum):
    """What a gateway does while the endpoint picker does not answer."""

    FAIL_OPEN = "FailOpen"
    FAIL_CLOSE = "FailClose"


class EndpointPickerRef(ApiModel):
    """The Service of an endpoint picker, as in an InferencePool of the Gateway API inference extension."""

    name: str = Field(min_length=1, max_length=63, pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$")
    """Name of the picker's Service, in the pool's namespace."""
    port: int = Field(default=9002, ge=1, le=65535)
    """Its gRPC port."""
    failure_mode: FailureMode = FailureMode.FAIL_OPEN
    """FailOpen: without the picker a gateway chooses a replica by itself. FailClose: it refuses."""


class InferencePoolSpec(ApiModel):
    """What is wanted. Only `model` is required."""

    model: ModelSource
    """The model to serve."""
    cache: ModelCache | None = None
    """hf:// only: keep the model on a claim, fetched once. Absent: every replica fetches it when it starts."""
    context: ContextLimits = ContextLimits()
    """Sequence length wanted and accepted."""
    traffic: Traffic = Traffic()
    """What requests look like."""
    accelerator: Accelerator = Accelerator()
    """What a replica runs on."""
    replicas: int = Field(default=1, le=1000)
    """Manual mode: the number of replicas. Auto mode: the size to start with, brought between the bounds."""
    min_replicas: int = Field(default=1, le=1000)
    """Auto mode: never fewer."""
    max_replicas: int | None = Field(default=None, ge=1, le=1000)
    """Auto mode: never more. Absent: the larger of replicas and minReplicas, so that nothing grows unasked."""
    objectives: Objectives = Objectives()
    """Latency to aim at."""
    scaling: Scaling = Scaling()
    """How the number of replicas is decided."""
    queue: Queue = Queue()
    """What may wait in front of a replica."""
    access: Access = Access()
    """Who may use the API."""
    rollout: Rollout = Rollout()
    """How a change reaches the pods."""
    engine: Engine = Engine()
    """Which engine runs, with which flags."""
    drain: Drain = Drain()
    """How a replica leaves."""
    pod: PodSettings = PodSettings()
    """Placement and resources of the pods."""
    endpoint_picker_ref: EndpointPickerRef | None = None
    """Given: an InferencePool of inference.networking.k8s.io with this pool's name, for gateways that route by an
    endpoint picker. Absent: none."""
    suspend: bool = False
    """true: no replicas at all, everything else kept."""

    @property
    def bounds(self) -> tuple[int, int]:
        """Fewest and most replicas that Auto mode may choose."""
        return self.min_replicas, self.max_replicas or max(self.replicas, self.min_replicas)

    @property
    def starting_replicas(self) -> int:
        """The size of a new pool, whatever the mode."""
        if self.scaling.mode is ScalingMode.MANUAL:
            return self.replicas
        low, high = self.bounds
        return min(max(self.replicas, low), high)

    def served_names(self, pool_name: str) -> tuple[str, ...]:
        """Names clients may use."""
        return self.model.served_names or (pool_name,)
