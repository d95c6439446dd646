"""What reconcile knows of one pool's world, as frozen values.

readers.py makes them of the API server's JSON, observe.py puts them together; planning and status read nothing else.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from pydantic import ValidationError

from tidegate_core.samples import History
from tidegate_core.telemetry import LoadReport
from tidegate_core.termination import TerminationMessage
from tidegate_operator.api.reasons import Reason
from tidegate_operator.resources import Manifest
from tidegate_operator.world.neighbours import NOBODY, Neighbourhood
from tidegate_operator.world.quota import Quota
from tidegate_operator.world.timeline import NO_TIMELINE, Timeline


@dataclass(frozen=True)
class Termination:
    """How a container ended."""

    exit_code: int
    reason: str
    message: str

    def last_words(self) -> TerminationMessage | None:
        """The engine's own message, where it left one."""
        try:
            return TerminationMessage.model_validate_json(self.message)
        except ValidationError:
            return None


@dataclass(frozen=True)
class Trouble:
    """Why a pod does not come up, in the words of whoever said so."""

    reason: Reason
    message: str


@dataclass(frozen=True)
class Ending:
    """Why a pod failed for good, in the words of the kubelet or of whoever evicted it."""

    reason: str
    message: str
    at: datetime


@dataclass(frozen=True)
class Pod:
    """One engine pod."""

    name: str
    uid: str
    template: str  # hash of the template it was made from
    ip: str | None
    created_at: datetime
    ready_since: datetime | None  # None: not ready
    draining_since: datetime | None
    is_serving: bool  # in the Service's selector
    is_terminating: bool
    is_running: bool  # its container runs, so it can be asked for its load
    deletion_cost: int
    trouble: Trouble | None
    node: str = ""  # empty: not scheduled yet
    timeline: Timeline = NO_TIMELINE
    scheduled_at: datetime | None = None  # None: it waits for a node
    num_restarts: int = 0  # of its container
    has_ended: bool = False  # it failed, was evicted or is done: it holds nothing any more
    is_fetching: bool = False  # its model, before its engine starts
    is_protected: bool = False  # autoscalers of nodes are asked to leave it alone
    drain_token_sha256: tuple[str, ...] = ()  # of the tokens that its engine accepts
    ending: Ending | None = None  # it failed for good, and nobody has removed it yet

    @property
    def is_ready(self) -> bool:
        return self.ready_since is not None and not self.is_terminating


@dataclass(frozen=True)
class Inspection:
    """One inspection Job and the end of its pod."""

    name: str
    uid: str
    attempt: int
    is_finished: bool
    finished_at: datetime | None
    failure: str  # the Job's own message when it failed without a pod's word, such as a passed deadline
    termination: Termination | None
    trouble: Trouble | None  # the pod cannot start
    created_at: datetime
    has_pod: bool
    is_running: bool = False  # its container: image and volumes are there


@dataclass(frozen=True)
class Taint:
    """What keeps pods off a node that do not bear it; the value is empty where it has none."""

    key: str
    value: str
    effect: str


@dataclass(frozen=True)
class Node:
    """What sizing and rollouts want to know of a node."""

    name: str
    labels: Mapping[str, str]
    allocatable: Mapping[str, str]
    used: Mapping[str, str] = field(default_factory=dict)  # extended resources that live pods on it have asked for
    taints: tuple[Taint, ...] = ()  # those that people set; what its condition brings is in is_schedulable
    is_cordoned: bool = False
    is_schedulable: bool = True  # neither cordoned nor in a condition that keeps new pods away

    @property
    def has_devices(self) -> bool:
        """Whether a device plugin offers anything on it."""
        return any(is_device(name) and text != "0" for name, text in self.allocatable.items())


@dataclass(frozen=True)
class DeploymentFacts:
    """What the Deployment says of itself."""

    num_replicas: int  # spec
    num_desired: int | None  # our annotation: the size decided last
    template: str
    num_updated: int
    num_live: int
    is_settled: bool  # its controller has seen the spec, and every pod has the current template
    refusal: str  # why its pods cannot be created, in the API server's words; empty where they can
    refused_since: datetime | None = None
    retried: str = ""  # our annotation: the last refusal for which its pods were tried anew
    is_paused: bool = False  # by a person: its controller makes no pod of a new template


@dataclass(frozen=True)
class Observed:
    """Everything about one pool at one moment."""

    children: tuple[Manifest, ...] = ()  # live objects that this pool controls
    strangers: tuple[str, ...] = ()  # objects under our names that others control: "Deployment chat"
    leftovers: tuple[str, ...] = ()  # objects of a deleted pool of this name that the garbage collector will take
    is_claim_missing: bool = False
    pods: tuple[Pod, ...] = ()
    cache_claim: Manifest | None = None  # of the name that the pool's cache has, whoever made it
    inspections: tuple[Inspection, ...] = ()
    downloads: tuple[Inspection, ...] = ()  # Jobs that fetch the model into the cache
    nodes: tuple[Node, ...] | None = None  # None: the operator may not look at nodes
    quotas: tuple[Quota, ...] = ()  # of the pool's namespace
    history: History | None = None  # earlier rounds of loads; None: this operator has seen none
    around: Neighbourhood = NOBODY  # what others brought, and optional children
    is_scaled_by_others: bool = False  # spec.replicas came through the scale subresource
    loads: Mapping[str, LoadReport] = field(default_factory=dict)  # by pod name; a pod that did not answer is missing
    failures: Mapping[str, str] = field(default_factory=dict)  # by pod name: what it answered instead of its load

    def child(self, kind: str, name: str) -> Manifest | None:
        return next((each for each in self.children if each["kind"] == kind and each["metadata"]["name"] == name), None)

    def of_role(self, kind: str, role_label: str, role: str) -> tuple[Manifest, ...]:
        return tuple(
            each
            for each in self.children
            if each["kind"] == kind and each["metadata"].get("labels", {}).get(role_label) == role
        )


def is_device(resource: str) -> bool:
    """Extended resources have a vendor's domain: nvidia.com/gpu. The system's own have none, or kubernetes.io."""
    domain, slash, _ = resource.partition("/")
    return bool(slash) and not domain.endswith("kubernetes.io")
