"""Which template the Deployment gets, how pods of an older one are replaced, when a new one is given up. Pure.

    another template is wanted ─▶ Surge or Replace, chosen once ─▶ under way ─a replica of it serves─▶ it is good
                                                                      │
              back to the last good one ◀─ none by the deadline, or they end again and again

The Deployment itself remembers: its strategy is the one chosen, and one annotation holds why, which template has
served, and which wish was given up with which cause. All of it is written in the apply that changes the template, so
neither a restart nor a failed status write repeats a decision. The deadline counts from when a pod has its node.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tidegate_operator.api.reasons import Reason
from tidegate_operator.api.spec import RolloutStrategy
from tidegate_operator.api.status import GivenUp, RolloutStatus
from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.decisions.revisions import Revisions, TemplateRevision
from tidegate_operator.labels import ROLLOUT_ANNOTATION, TEMPLATE_LABEL
from tidegate_operator.manifests.deployment import ROLLING_UPDATE
from tidegate_operator.resources import Manifest
from tidegate_operator.sizing.capacity import candidates, free_accelerators, num_devices
from tidegate_operator.world.observed import DeploymentFacts, Observed, Pod, Trouble
from tidegate_operator.world.quota import claim, room

MAX_RESTARTS = 3  # of a container that never became ready: it ends again and again
ROOM_SECONDS = 30  # a replica that finds no room for so long will not find it by itself
MAX_CAUSE_CHARACTERS = 500
MAX_WHY_CHARACTERS = 512
_ENDED = Trouble(Reason.ENGINE_FAILING, "pods end one after the other; kubectl describe pod says why")
_ENDS = (Reason.OUT_OF_MEMORY, Reason.ENGINE_FAILING)


class Cause(BaseModel):
    """Why a wish was given up."""

    model_config = ConfigDict(frozen=True)

    wish: str  # revisions.Wish.key
    revision: int
    reason: Reason
    message: str = Field(max_length=1024)


class RolloutMemory(BaseModel):
    """What the Deployment's annotation holds."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    why: str = Field(default="", max_length=MAX_WHY_CHARACTERS)  # this strategy
    good: str = ""  # hash of the template that last served
    given_up: Cause | None = None


@dataclass(frozen=True)
class Before:
    """The live Deployment, as far as rollouts go."""

    facts: DeploymentFacts | None = None  # None: there is none
    strategy: RolloutStrategy = RolloutStrategy.REPLACE
    memory: RolloutMemory = field(default_factory=RolloutMemory)

    @property
    def template(self) -> str:
        """Hash; empty where there is no Deployment."""
        return self.facts.template if self.facts else ""

    @classmethod
    def of(cls, live: Manifest | None, facts: DeploymentFacts | None) -> "Before":
        """A memory that people edited into nonsense is no memory."""
        if live is None or facts is None:
            return cls()
        surges = live["spec"].get("strategy", {}).get("rollingUpdate") == ROLLING_UPDATE[RolloutStrategy.SURGE]
        text = live["metadata"].get("annotations", {}).get(ROLLOUT_ANNOTATION, "{}")
        try:
            memory = RolloutMemory.model_validate_json(text)
        except ValidationError:
            memory = RolloutMemory()
        return cls(facts, RolloutStrategy.SURGE if surges else RolloutStrategy.REPLACE, memory)


@dataclass(frozen=True)
class Rollout:
    """The decision: `current` goes into the Deployment."""

    current: TemplateRevision
    is_of_these_inputs: bool
    strategy: RolloutStrategy
    memory: RolloutMemory
    failing: Trouble | None = None  # the wanted template fails, and there is none to go back to
    is_paused: bool = False  # the Deployment, by a person

    @property
    def given_up(self) -> Cause | None:
        return self.memory.given_up

    def to_annotation(self) -> str:
        return self.memory.model_dump_json(exclude_defaults=True)

    def to_status(self) -> RolloutStatus:
        cause = self.given_up
        return RolloutStatus(
            strategy=self.strategy,
            reason=self.memory.why,
            revision=self.current.number,
            given_up=GivenUp(reason=cause.reason, message=cause.message) if cause else None,
        )


def plan_rollout(
    pool: InferencePool,
    observed: Observed,
    before: Before,
    revisions: Revisions,
    now: datetime,
) -> Rollout:
    """`revisions.current` is what the user's wish asks for, or what has to do instead."""
    assert revisions.current is not None
    current, memory = revisions.current, before.memory
    given_up = memory.given_up if memory.given_up and memory.given_up.wish == revisions.wish else None
    failure = _failure(pool, observed, before, current, now)
    if failure and revisions.good and current.template_hash != revisions.good.template_hash:
        given_up = Cause(
            wish=revisions.wish,
            revision=current.number,
            reason=failure.reason,
            message=failure.message[:MAX_CAUSE_CHARACTERS],
        )
        current, failure = revisions.good, None
    strategy, why = _strategy(pool, observed, before, current, now)
    serves = any(pod.is_ready and pod.template == current.template_hash for pod in observed.pods)
    good = current.template_hash if serves else memory.good
    return Rollout(
        current=current,
        is_of_these_inputs=revisions.is_of_these_inputs and given_up is None,
        strategy=strategy,
        memory=RolloutMemory(why=why[:MAX_WHY_CHARACTERS], good=good, given_up=given_up),
        failing=failure if failure and failure.is_late else None,
        is_paused=before.facts is not None and before.facts.is_paused,
    )


@dataclass(frozen=True)
class _Failure(Trouble):
    is_late: bool = True  # the deadline has passed


def _failure(
    pool: InferencePool,
    observed: Observed,
    before: Before,
    current: TemplateRevision,
    now: datetime,
) -> _Failure | None:
    """What keeps a template, none of whose replicas has ever served, from becoming ready; None while it may yet."""
    is_new = before.template == current.template_hash != before.memory.good
    mine = [pod for pod in observed.pods if pod.template == current.template_hash and not pod.is_terminating]
    if not is_new or any(pod.is_ready for pod in mine):
        return None
    seconds = pool.spec.rollout.progress_deadline_seconds or current.progress_deadline_seconds
    facts = None if mine or _is_room_coming(observed, current) else before.facts
    if facts and facts.refused_since and _has_passed(facts.refused_since, seconds, now):
        return _Failure(Reason.PODS_REFUSED, facts.refusal)
    for pod in mine:
        if pod.scheduled_at is not None and _has_passed(pod.scheduled_at, seconds, now):
            silent = Trouble(Reason.DEADLINE_EXCEEDED, f"a replica was not ready {seconds} s after it got a node")
            trouble = pod.trouble or silent
            return _Failure(trouble.reason, trouble.message)
    return _ends_again_and_again(mine, [pod for pod in observed.pods if pod.template == current.template_hash])


def _is_room_coming(observed: Observed, current: TemplateRevision) -> bool:
    """For a pod that was refused: a replica that drains still holds its share, or the next try will find some."""
    return _is_one_leaving(observed.pods) or bool(room(observed.quotas, current.template).num_more)


def _ends_again_and_again(mine: list[Pod], all_of_it: list[Pod]) -> _Failure | None:
    """One container that restarts, or pod after pod: evicted, or refused by its node."""
    restarting = [pod.trouble for pod in mine if pod.num_restarts >= MAX_RESTARTS]
    ended = [pod.trouble or _ENDED for pod in all_of_it if pod.has_ended]
    troubles = [*restarting, *(ended if len(ended) >= MAX_RESTARTS else ())]
    trouble = next((each for each in troubles if each and each.reason in _ENDS), None)
    return _Failure(trouble.reason, trouble.message, is_late=False) if trouble else None


def _strategy(
    pool: InferencePool,
    observed: Observed,
    before: Before,
    current: TemplateRevision,
    now: datetime,
) -> tuple[RolloutStrategy, str]:
    """The user's word; else what was chosen when this rollout began, unless its surge finds no room."""
    if pool.spec.rollout.strategy is not None or before.template != current.template_hash:
        return choose_strategy(pool, current.template, observed)
    if before.strategy is RolloutStrategy.SURGE and is_replacing(observed.pods, before.template, current):
        if before.facts is not None and before.facts.refusal:
            return RolloutStrategy.REPLACE, "the API server lets no further replica be created"
        if _waiting_for_room(observed.pods, current, now) and _makes_room(pool, current.template, observed):
            return RolloutStrategy.REPLACE, "one more replica found no room"
    return before.strategy, before.memory.why


def choose_strategy(pool: InferencePool, template: Manifest, observed: Observed) -> tuple[RolloutStrategy, str]:
    """What a rollout of that pod template would do if it began now, and why."""
    if pool.spec.rollout.strategy is not None:
        return pool.spec.rollout.strategy, "spec.rollout.strategy says so"
    allowed, nodes = room(observed.quotas, template), observed.nodes
    if allowed.num_more == 0:
        return RolloutStrategy.REPLACE, f"no quota is left for one more replica: {allowed.why}"
    resource = pool.spec.accelerator.resource
    if pool.spec.accelerator.is_cpu:
        return RolloutStrategy.SURGE, "a cpu pool needs no accelerator for one more replica"
    if nodes is None:
        return RolloutStrategy.REPLACE, "the operator may not look at nodes, so no accelerator counts as free"
    num_needed = num_accelerators(template, resource)
    free = free_accelerators(candidates(pool, nodes), resource)
    if names := sorted(name for name, number in free.items() if number >= num_needed):
        return RolloutStrategy.SURGE, f"{num_needed} {resource} free on node {names[0]}"
    if not _makes_room(pool, template, observed):
        why = f"no replica is on a node with {num_needed} {resource}, so none that leaves would make room"
        return RolloutStrategy.SURGE, why
    return RolloutStrategy.REPLACE, f"no node has {num_needed} {resource} free"


def _makes_room(pool: InferencePool, template: Manifest, observed: Observed) -> bool:
    """Whether a replica of another template that leaves may make room for one of this, as far as nodes are known.

    Where its node is too small, or is none for the new ones, only another node does, which may be on its way.
    """
    others = [pod for pod in observed.pods if pod.template != template["metadata"]["labels"][TEMPLATE_LABEL]]
    held = {pod.node for pod in others if pod.node and not pod.has_ended}
    if pool.spec.accelerator.is_cpu or observed.nodes is None or not held:
        return True
    resource = pool.spec.accelerator.resource
    num_needed = num_accelerators(template, resource)
    return any(
        node.name in held and num_devices(node, resource) >= num_needed for node in candidates(pool, observed.nodes)
    )


def num_accelerators(template: Manifest, resource: str) -> int:
    """Devices of one replica."""
    return int(claim(template).get(f"limits.{resource}", 0))


def is_replacing(pods: Iterable[Pod], deployed: str, current: TemplateRevision) -> bool:
    """Whether replicas of another template are still there, or about to be told to go."""
    live = [pod for pod in pods if not pod.is_terminating]
    return any(pod.template != current.template_hash for pod in live) or bool(
        live and deployed != current.template_hash
    )


def replicas_while_replacing(
    observed: Observed, rollout: Rollout, *, num_replicas: int, num_desired: int, now: datetime
) -> int:
    """The Deployment's replicas while older ones are there.

    A surge may grow. In place, a replica more would wait for what an old one holds, and the old one for it: so it grows
    afterwards, and what finds no room is not insisted on while the rest is replaced.
    """
    if rollout.strategy is RolloutStrategy.SURGE:
        return max(num_replicas, num_desired)
    stuck = _waiting_for_room(observed.pods, rollout.current, now)
    live = [pod for pod in observed.pods if not pod.is_terminating]
    return max(1, len(live) - len(stuck)) if stuck and len(live) > len(stuck) else num_replicas


def _waiting_for_room(pods: Iterable[Pod], current: TemplateRevision, now: datetime) -> list[Pod]:
    """New replicas that found no node for a while, though nobody is about to leave one."""
    if _is_one_leaving(pods):
        return []
    return [
        pod
        for pod in pods
        if pod.template == current.template_hash
        and not pod.is_terminating
        and pod.trouble is not None
        and pod.trouble.reason is Reason.UNSCHEDULABLE
        and _has_passed(pod.created_at, ROOM_SECONDS, now)
    ]


def _is_one_leaving(pods: Iterable[Pod]) -> bool:
    return any(pod.is_terminating and not pod.has_ended for pod in pods)


def _has_passed(since: datetime, seconds: float, now: datetime) -> bool:
    return (now - since).total_seconds() >= seconds
