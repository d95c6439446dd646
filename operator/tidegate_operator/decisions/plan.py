"""What should happen to one pool now: a value that can be printed, tested and carried out.

planning.py makes it, apply.py carries it out, findings.py and status.py say what it means.
"""

import json
from dataclasses import dataclass

from tidegate_operator.api.reasons import Reason
from tidegate_operator.api.status import EngineStatus
from tidegate_operator.decisions.engine_version import EngineDefaults
from tidegate_operator.decisions.failed_pods import NO_FAILED_PODS, FailedPods
from tidegate_operator.decisions.inspection import ModelFinding
from tidegate_operator.decisions.integration import NO_MONITORING, Integration, MonitoringDefaults
from tidegate_operator.decisions.model_cache import CacheFinding
from tidegate_operator.decisions.notes import Note
from tidegate_operator.decisions.protection import Protection
from tidegate_operator.decisions.revisions import Revisions
from tidegate_operator.decisions.rollout import (
    Rollout,
)
from tidegate_operator.decisions.scale import ScaleTiming, Size
from tidegate_operator.decisions.scaledown import Mark
from tidegate_operator.manifests.network_policy import NO_PEERS, Peers
from tidegate_operator.resources import Manifest
from tidegate_operator.sizing.fitting import FitFinding
from tidegate_operator.world.observed import Pod
from tidegate_operator.world.quota import REFUSAL

NO_REVISIONS = Revisions(None)
START_POLL_SECONDS = 10.0  # watches tell when something happens; this is for what they missed


@dataclass(frozen=True)
class PlanSettings:
    """The part of the operator's settings that decides something."""

    engine: EngineDefaults
    timing: ScaleTiming
    peers: Peers = NO_PEERS  # who may reach engines
    monitoring: MonitoringDefaults = NO_MONITORING


@dataclass(frozen=True)
class Blocked:
    """Nothing may be done, and why."""

    reason: Reason
    message: str
    is_final: bool


@dataclass(frozen=True)
class Refusal:
    """The API server does not accept an object of ours (schema, policy, quota, role): a person is needed."""

    title: str
    message: str
    is_optional: bool = False  # an object for another project: the pool serves without it


@dataclass(frozen=True)
class Plan:
    """What to do, in the order of the fields, and the findings behind it for status."""

    namespace: str
    marks: tuple[Mark, ...] = ()
    drain: tuple[Pod, ...] = ()
    undrain: tuple[Pod, ...] = ()
    protect: tuple[Protection, ...] = ()
    delete: tuple[Manifest, ...] = ()
    apply: tuple[Manifest, ...] = ()
    notes: tuple[Note, ...] = ()
    requeue_after_seconds: float = START_POLL_SECONDS
    blocked: Blocked | None = None
    model: ModelFinding | None = None
    fit: FitFinding | None = None
    advice: str = ""  # how to size replicas anew, where more of them would not help
    cache: CacheFinding | None = None  # None: the pool has none, or its model is not known to fit
    args_refused: str = ""  # what is wrong with the engine flags that the pool adds
    revisions: Revisions = NO_REVISIONS
    size: Size | None = None  # None: nothing is deployed
    orders_more: bool = False  # more replicas are wanted, or ordered, than were
    held_by_quota: str = ""  # why fewer replicas are ordered than are wanted
    pods_refused: str = ""  # why the Deployment's pods cannot be created
    shortage: str = ""  # of devices, where a replica finds no node
    rollout: Rollout | None = None  # None: nothing is deployed
    engine: EngineStatus | None = None
    is_rolling_out: bool = False
    integration: Integration | None = None  # None: blocked
    failed_pods: FailedPods = NO_FAILED_PODS

    @property
    def is_satisfied(self) -> bool:
        """Nothing to write."""
        return not (self.marks or self.drain or self.undrain or self.protect or self.delete or self.apply)

    @property
    def is_refused_by_quota(self) -> bool:
        """Pods that were ordered."""
        return REFUSAL in self.pods_refused

    @property
    def begins_rollout(self) -> bool:
        """A template is applied that no Deployment has had."""
        return self.rollout is not None and bool(self.revisions.apply)

    def __str__(self) -> str:
        """One line a step, for logs and people."""
        steps = [f"mark {mark.pod.name} {'draining' if mark.draining_since else 'serving'}" for mark in self.marks]
        steps += [f"drain {pod.name}" for pod in self.drain] + [f"undrain {pod.name}" for pod in self.undrain]
        steps += [f"{'protect' if each.is_on else 'unprotect'} {each.pod.name}" for each in self.protect]
        steps += [f"delete {_title(each)}" for each in self.delete] + [f"apply {_title(each)}" for each in self.apply]
        return "\n".join(steps) or "nothing to do"


def _title(manifest: Manifest) -> str:
    digest = json.dumps(manifest.get("spec", {}).get("replicas"))
    return f"{manifest['kind']} {manifest['metadata']['name']}" + (f" replicas {digest}" if digest != "null" else "")
