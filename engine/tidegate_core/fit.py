"""What sizing is asked and what it answers: frozen values, for a table on a terminal, for JSON and for a pool's status.

`tidegate_core.sizing` computes a Fit; this module only knows its terms and how they are shown.
"""

from dataclasses import dataclass
from enum import StrEnum

from tidegate_core.accelerator import Device

BLOCK_SIZE = 16  # tokens a KV block holds
DEVICE_COUNTS = (1, 2, 4, 8)  # of a replica: nodes have no more, and collectives are made for powers of two


@dataclass(frozen=True)
class Target:
    """The device an engine runs on, and how many share the model. On CPU the device memory is the pod's limit."""

    device: Device
    memory_bytes: int
    utilisation: float = 0.9  # share of the memory that is ours
    tensor_parallel: int = 1
    bandwidth: int | None = None  # bytes a second; unknown: no token rate is predicted
    loaded_percent: int = 100  # runtime and weights as engines like this one measured them, of what is estimated


@dataclass(frozen=True)
class Demand:
    """What users want. Absent contexts: the model's own, shrunk as far as needed but not below 2,048 tokens."""

    context_max: int | None = None
    context_min: int | None = None
    prompt_tokens: int = 900  # p90
    output_tokens: int = 300  # p90
    max_slots: int | None = None
    users: int | None = None
    generation_seconds: float | None = None  # one answer
    turn_seconds: float | None = None  # from one question of a user to the next


class Constraint(StrEnum):
    """What a replica runs out of first."""

    OVERHEAD = "overhead"  # the runtime alone takes the memory
    WEIGHTS = "weights"  # the weights leave no room for one sequence
    LOADING = "loading"  # there is room for the weights, but not for getting them there
    KV_MEMORY = "kvMemory"  # the KV pool bounds the slots, and the context where that was shrunk
    SLOTS = "slots"  # the slots asked for; more memory changes nothing
    MODEL_CONTEXT = "modelContext"  # the smallest context asked for is above the model's limit
    TENSOR_PARALLEL = "tensorParallel"  # attention heads cannot be divided between the devices
    DEVICES = "devices"  # it takes more devices than any node has, and nobody has asked for so many


class RemedyKind(StrEnum):
    """Ways to make a model fit, cheapest first; sizing can price more of them than the engine can do."""

    KV_8BIT = "kv8Bit"
    WEIGHTS_8BIT = "weights8Bit"
    BOTH_8BIT = "both8Bit"  # where neither alone helps
    WEIGHTS_4BIT = "weights4Bit"
    MORE_GPUS = "moreGpus"
    FEWER_GPUS = "fewerGpus"  # where more were asked for than can be joined
    SMALLER_CONTEXT = "smallerContext"
    LARGER_GPU = "largerGpu"
    MORE_MEMORY = "moreMemory"


_NOT_OFFERED = {RemedyKind.WEIGHTS_4BIT}


@dataclass(frozen=True)
class Remedy:
    """One way out, with what it would give."""

    kind: RemedyKind
    summary: str
    context: int
    slots: int

    @property
    def is_offered(self) -> bool:
        """Whether this version can do it."""
        return self.kind not in _NOT_OFFERED

    @property
    def description(self) -> str:
        """The summary where it stands alone: a reader must not look for a field that is not there."""
        return self.summary if self.is_offered else f"{self.summary} (not offered by this version)"


@dataclass(frozen=True)
class Option:
    """The same replica on a smaller or larger device; no slots where it would not fit."""

    name: str
    memory_bytes: int
    context: int
    slots: int


@dataclass(frozen=True)
class BlockPlan:
    """How a KV pool is laid out; the engine computes it again from measured bytes."""

    num_blocks: int
    block_bytes: int  # on one device
    context: int  # 0: not even the smallest context fits
    slots: int

    @property
    def pool_bytes(self) -> int:
        """Bytes of the pool on one device."""
        return self.num_blocks * self.block_bytes


@dataclass(frozen=True)
class Fit:
    """Every term of a sizing. Terms are bytes of one device unless they say otherwise."""

    # the memory, term by term
    memory_bytes: int
    unused_share_bytes: int  # memory x (1 - utilisation)
    runtime_bytes: int
    collectives_bytes: int
    activation_bytes: int
    logits_bytes: int
    graphs_bytes: int
    reserve_bytes: int
    per_gpu_weight_bytes: int
    kv_pool_bytes: int
    loading_bytes: int  # while weights are loaded: the pool takes them later
    # the model
    weight_bytes: int  # whole model
    kv_bytes_per_token: int  # whole model, layers that grow
    kv_fixed_bytes_per_sequence: int
    per_gpu_kv_bytes_per_token: int
    # the answer
    kv_blocks: int
    context: int
    context_wanted: int  # the longest asked for that the model knows
    context_smallest: int
    smallest_kv_bytes: int  # of one sequence that long, on one device
    slots: int
    tensor_parallel: int
    resident_bytes: int  # private memory of the engine's processes on the host, one for each device
    fits: bool
    binding_constraint: Constraint
    # the load it bears
    offered_requests: float | None  # in flight on average
    tokens_per_second_ceiling: float | None  # all slots decoding
    stream_tokens_per_second_ceiling: float | None  # one alone
    # what to make of it, added by plan_fit
    statement: str = ""  # the answer in a sentence with its numbers
    remedies: tuple[Remedy, ...] = ()
    smaller: Option | None = None  # on the next smaller device there is
    larger: Option | None = None
    devices_there: int | None = None  # most that one known node has, where a replica takes more

    @property
    def overhead_bytes(self) -> int:
        """Everything of the device that is neither weights nor KV."""
        return (
            self.unused_share_bytes
            + self.runtime_bytes
            + self.collectives_bytes
            + self.activation_bytes
            + self.logits_bytes
            + self.graphs_bytes
            + self.reserve_bytes
        )

    @property
    def loading_floor_bytes(self) -> int:
        """The least memory in which the engine gets through loading."""
        return self.runtime_bytes + self.per_gpu_weight_bytes + self.loading_bytes + self.reserve_bytes

    @property
    def usable_bytes(self) -> int:
        """What weights and KV may take; negative when not even the runtime fits."""
        return self.memory_bytes - self.overhead_bytes
