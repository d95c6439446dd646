"""What should happen to one pool now: a value that can be printed, tested and carried out. Pure.

    blocked? ─▶ model known? ─▶ fits? ─▶ flags known? ─▶ which template? ─▶ how many replicas? ─▶ who drains?
             ─▶ manifests, deletions

Every question has its module; this one asks them in order and keeps what is already so out of the plan. A template
that was good stays applied while a newer wish waits for an answer or does not fit.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from tidegate_core.squeeze import is_squeezed
from tidegate_core.telemetry import LoadReport
from tidegate_operator.advice import resize_advice
from tidegate_operator.api.reasons import Reason
from tidegate_operator.api.status import EngineStatus
from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.capacity import candidates, shortage
from tidegate_operator.drain_time import drain_seconds
from tidegate_operator.drift import is_satisfied, stamped
from tidegate_operator.engine_version import EngineDefaults, engine_status
from tidegate_operator.experience import Experience, planned_percent
from tidegate_operator.extra_args import refusal
from tidegate_operator.failed_pods import NO_FAILED_PODS, FailedPods, judge_failed_pods
from tidegate_operator.fitting import FitFinding, find_fit
from tidegate_operator.inspection import ModelFinding, find_model
from tidegate_operator.integration import NO_MONITORING, Integration, MonitoringDefaults, integrate
from tidegate_operator.manifests.config_map import chat_template
from tidegate_operator.manifests.deployment import deployment
from tidegate_operator.manifests.labels import CHAT_TEMPLATE_ROLE, DESIRED_ANNOTATION, ROLE_LABEL
from tidegate_operator.manifests.model_volume import HubFiles
from tidegate_operator.manifests.network_policy import NO_PEERS, Peers, network_policies, unwanted_network_policies
from tidegate_operator.manifests.pod import Runtime
from tidegate_operator.manifests.pod_disruption_budget import disruption_budgets, unwanted_disruption_budgets
from tidegate_operator.manifests.service import service
from tidegate_operator.manifests.service_account import service_account
from tidegate_operator.model_cache import CacheFinding, find_cache, unwanted_claims
from tidegate_operator.notes import Note
from tidegate_operator.observed import DeploymentFacts, Observed, Pod, read_deployment
from tidegate_operator.protection import Protection, plan_protection
from tidegate_operator.quota import LOOK_SECONDS, REFUSAL, Room, num_to_order, room
from tidegate_operator.rendering import render_revision
from tidegate_operator.resources import CONFIG_MAP, CONTROLLER_REVISION, DEPLOYMENT, JOB, Manifest
from tidegate_operator.revisions import Deployed, Revisions, TemplateRevision, Wish, choose_revision
from tidegate_operator.rollout import (
    Before,
    Rollout,
    is_replacing,
    num_accelerators,
    plan_rollout,
    replicas_while_replacing,
)
from tidegate_operator.scale import ScaleTiming, Size, choose_size, look_seconds
from tidegate_operator.scaledown import Mark, ScaleDown, plan_scale_down

LEFTOVER_POLL_SECONDS = 1.0
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


def plan(
    pool: InferencePool, observed: Observed, settings: PlanSettings, now: datetime, *, may_roll: bool = True
) -> Plan:
    """Same arguments, same plan. Not `may_roll`: the API server refuses a new template, so the old one scales on."""
    if blocked := _blocked(observed):
        seconds = START_POLL_SECONDS if blocked.is_final else LEFTOVER_POLL_SECONDS
        return Plan(pool.metadata.namespace, blocked=blocked, requeue_after_seconds=seconds)
    engine = settings.engine.of_pool(pool)
    model = find_model(pool, observed, engine.runtime, now)
    experience = Experience(engine.runtime.image, pool.status.learned_sizing)
    fit = find_fit(pool, model.shape, observed.nodes, experience) if model.shape else None
    args_refused = refusal(pool)
    files = model.files if fit is not None and fit.is_good else None  # nothing is fetched that would not fit
    cache = _cache(pool, observed, files, engine.runtime, now)
    may_render = may_roll and not args_refused and (cache is None or cache.is_ready)
    before = _before(pool, observed)
    failed = judge_failed_pods(observed.pods, now)
    loads = observed.loads.values()
    render = _renderer(pool, fit, files, engine, loads, avoid=failed.nodes) if may_render else None
    revisions = choose_revision(pool, observed, Wish.of(pool, engine), _deployed_templates(before), render)
    fit = _as_planned(pool, observed, model, fit, revisions)
    if revisions.current is None:
        steps = _nothing_deployed(pool, observed, model, fit)
    else:
        rollout = plan_rollout(pool, observed, before, revisions, now)
        revisions = replace(revisions, current=rollout.current, is_of_these_inputs=rollout.is_of_these_inputs)
        steps = _deployed(pool, observed, settings, now, _Findings(model, fit, before, revisions, rollout))
    steps = replace(steps, advice=_advice(pool, model, fit, steps.size))
    steps = _with_cache(replace(steps, args_refused=args_refused, cache=cache), pool, observed)
    steps = _with_network_policy(steps, pool, observed, settings.peers)
    steps = _with_neighbours(steps, pool, observed, settings)
    return replace(steps, delete=(*steps.delete, *failed.delete), failed_pods=failed)


def _as_planned(
    pool: InferencePool, observed: Observed, model: ModelFinding, fit: FitFinding | None, revisions: Revisions
) -> FitFinding | None:
    """What was learned since a template was made says nothing about that template."""
    if model.shape is None or fit is None or fit.basis is None or not revisions.is_of_these_inputs:
        return fit
    planned = 100 if revisions.current is None else planned_percent(revisions.current.sizing)
    if planned == fit.basis.loaded_percent:
        return fit
    return find_fit(pool, model.shape, observed.nodes, Experience(applied=planned))


def _advice(pool: InferencePool, model: ModelFinding, fit: FitFinding | None, size: Size | None) -> str:
    if size is None or size.history is None or not is_squeezed(size.history.memory):
        return ""
    return "" if model.shape is None or fit is None else resize_advice(pool, model.shape, fit)


def _cache(
    pool: InferencePool, observed: Observed, files: HubFiles | None, runtime: Runtime, now: datetime
) -> CacheFinding | None:
    return None if files is None else find_cache(pool, observed, files, runtime, now)


def _with_cache(steps: Plan, pool: InferencePool, observed: Observed) -> Plan:
    """The claim and the Job that fills it, beside whatever serves meanwhile."""
    found = steps.cache
    delete = (*steps.delete, *(found.delete if found else ()), *unwanted_claims(pool, observed))
    if found is None:
        return replace(steps, delete=delete)
    waits = (steps.requeue_after_seconds, found.requeue_after_seconds or steps.requeue_after_seconds)
    apply = (*_missing(observed, found.apply), *steps.apply)
    return replace(steps, apply=apply, delete=delete, requeue_after_seconds=min(waits))


def _with_network_policy(steps: Plan, pool: InferencePool, observed: Observed, peers: Peers) -> Plan:
    """Before the first pod is there."""
    policies = _missing(observed, network_policies(pool, peers))
    unwanted = unwanted_network_policies(observed, peers)
    return replace(steps, apply=(*policies, *steps.apply), delete=(*steps.delete, *unwanted))


def _with_neighbours(steps: Plan, pool: InferencePool, observed: Observed, settings: PlanSettings) -> Plan:
    """Children for other projects come once there is something to monitor or to route to."""
    found = integrate(pool, observed.around, settings.monitoring)
    wanted = found.apply if steps.size is not None else ()
    return replace(
        steps, apply=(*steps.apply, *wanted), delete=(*steps.delete, *found.delete), integration=found
    )  # fmt: skip


@dataclass(frozen=True)
class _Findings:
    model: ModelFinding
    fit: FitFinding | None
    before: Before
    revisions: Revisions
    rollout: Rollout


def _deployed_templates(before: Before) -> Deployed:
    given_up = before.memory.given_up
    return Deployed(before.template, before.memory.good, given_up.wish if given_up else None)


def _blocked(observed: Observed) -> Blocked | None:
    if observed.strangers:
        strangers = ", ".join(observed.strangers)
        message = f"not controlled by this pool: {strangers}; rename the pool, or delete what is there"
        return Blocked(Reason.CHILD_NOT_OURS, message, is_final=True)
    if observed.leftovers:
        owned = ", ".join(observed.leftovers)
        message = f"a deleted pool of this name still owns {owned}; waiting for the garbage collector"
        return Blocked(Reason.RECONCILING, message, is_final=False)
    return None


def _renderer(
    pool: InferencePool,
    fit: FitFinding | None,
    files: HubFiles | None,
    engine: EngineDefaults,
    loads: Iterable[LoadReport],
    *,
    avoid: tuple[str, ...],
) -> Callable[[int], TemplateRevision] | None:
    if fit is None or fit.fit is None or not fit.fit.fits:
        return None
    good, basis = fit.fit, fit.basis
    return lambda number: render_revision(
        pool, good, engine, number, drain_seconds(pool, loads), files=files, basis=basis, avoid=avoid
    )


def _nothing_deployed(pool: InferencePool, observed: Observed, model: ModelFinding, fit: FitFinding | None) -> Plan:
    return Plan(
        pool.metadata.namespace,
        delete=model.delete,
        apply=_missing(observed, model.apply),
        model=model,
        fit=fit,
        requeue_after_seconds=model.requeue_after_seconds or START_POLL_SECONDS,
    )


def _deployed(
    pool: InferencePool, observed: Observed, settings: PlanSettings, now: datetime, findings: _Findings
) -> Plan:
    revisions, facts, rollout = findings.revisions, findings.before.facts, findings.rollout
    allowed = room(observed.quotas, rollout.current.template)
    size = choose_size(
        pool,
        observed,
        facts,
        now,
        slots=rollout.current.sizing.slots,
        timing=settings.timing,
        room=allowed,
    )
    down = _scale_down(pool, observed, findings, size, now=now)
    num_ordered = _num_to_order(observed, findings, down.num_replicas, allowed)
    held_by_quota = _held_by_quota(num_ordered, down.num_replicas, allowed)
    wanted = [*_children(pool), *findings.model.apply, *revisions.apply]
    wanted.append(_wanted_deployment(pool, rollout, size, num_ordered))
    waits = (
        findings.model.requeue_after_seconds,
        down.requeue_after_seconds,
        LOOK_SECONDS if held_by_quota else None,
        look_seconds(observed, size, settings.timing),
    )
    return Plan(
        pool.metadata.namespace,
        marks=down.marks,
        drain=down.drain,
        undrain=down.undrain,
        protect=plan_protection(observed.pods, pool.spec.pod.annotations),
        delete=(
            *findings.model.delete,
            *revisions.delete,
            *_unused_config_maps(pool, observed, revisions),
            *unwanted_disruption_budgets(pool, observed),
        ),
        apply=_missing(observed, tuple(wanted)),
        notes=_notes(size, down, facts),
        requeue_after_seconds=min(seconds for seconds in waits if seconds is not None),
        model=findings.model,
        fit=findings.fit,
        revisions=revisions,
        size=size,
        orders_more=size.num_desired > size.num_before or num_ordered > (facts.num_replicas if facts else 0),
        held_by_quota=held_by_quota,
        pods_refused=facts.refusal if facts else "",
        shortage=_shortage(pool, observed, rollout.current),
        rollout=rollout,
        engine=engine_status(rollout.current.template, settings.engine.of_pool(pool)),
        is_rolling_out=_is_rolling_out(observed, facts, rollout.current),
    )


def _shortage(pool: InferencePool, observed: Observed, current: TemplateRevision) -> str:
    """What the scheduler does not say: how many devices are free where. Only while a replica waits for a node."""
    is_waiting = any(pod.trouble and pod.trouble.reason is Reason.UNSCHEDULABLE for pod in observed.pods)
    if not is_waiting or observed.nodes is None or pool.spec.accelerator.is_cpu:
        return ""
    resource = pool.spec.accelerator.resource
    return shortage(candidates(pool, observed.nodes), resource, num_accelerators(current.template, resource))


def _before(pool: InferencePool, observed: Observed) -> Before:
    live = observed.child(DEPLOYMENT.kind, pool.metadata.name)
    return Before.of(live, None if live is None else read_deployment(live, DESIRED_ANNOTATION))


def _is_rolling_out(observed: Observed, facts: DeploymentFacts | None, current: TemplateRevision) -> bool:
    templates = {pod.template for pod in observed.pods if not pod.is_terminating} | {current.template_hash}
    return facts is not None and (len(templates) > 1 or not facts.is_settled)


def _scale_down(
    pool: InferencePool, observed: Observed, findings: _Findings, size: Size, *, now: datetime
) -> ScaleDown:
    facts, rollout = findings.before.facts, findings.rollout
    if facts is None or pool.spec.suspend:
        return ScaleDown(size.num_desired)
    num_replicas = facts.num_replicas
    num_rolling: int | None = None
    if is_replacing(observed.pods, findings.before.template, rollout.current):
        num_rolling = replicas_while_replacing(
            observed, rollout, num_replicas=num_replicas, num_desired=size.num_desired, now=now
        )
    elif _is_rolling_out(observed, facts, rollout.current):
        num_rolling = max(num_replicas, size.num_desired)
    return plan_scale_down(
        num_replicas=num_replicas,
        num_desired=size.num_desired,
        pods=observed.pods,
        loads=observed.loads,
        num_rolling=num_rolling,
        drain_timeout_seconds=rollout.current.drain_seconds,
        now=now,
    )


def _children(pool: InferencePool) -> list[Manifest]:
    """What the Deployment's pods need first."""
    found = chat_template(pool)
    return [service_account(pool), *([found] if found else []), *disruption_budgets(pool), service(pool)]


def _num_to_order(observed: Observed, findings: _Findings, num_wanted: int, allowed: Room) -> int:
    """While a rollout runs nothing is taken back: the Deployment's controller would let an old replica go for it."""
    facts, current = findings.before.facts, findings.rollout.current
    is_refused = facts is not None and REFUSAL in facts.refusal and not _is_rolling_out(observed, facts, current)
    return num_to_order(
        num_wanted,
        num_ordered=facts.num_replicas if facts else 0,
        num_live=sum(not pod.is_terminating for pod in observed.pods),
        room=allowed,
        is_refused=is_refused,
    )


def _held_by_quota(num_ordered: int, num_wanted: int, allowed: Room) -> str:
    if num_ordered >= num_wanted:
        return ""
    return f"{num_wanted} replicas are wanted, of which {num_ordered} can be: {allowed.why}"


def _wanted_deployment(pool: InferencePool, rollout: Rollout, size: Size, num_ordered: int) -> Manifest:
    return deployment(
        pool,
        rollout.current.template,
        num_replicas=num_ordered,
        num_desired=size.num_desired,
        strategy=rollout.strategy,
        rollout_memory=rollout.to_annotation(),
    )


def _missing(observed: Observed, wanted: tuple[Manifest, ...]) -> tuple[Manifest, ...]:
    """Those that are not so yet. Jobs and revisions never change once they exist."""
    found = []
    for manifest in map(stamped, wanted):
        live = observed.child(manifest["kind"], manifest["metadata"]["name"])
        is_immutable = manifest["kind"] in (JOB.kind, CONTROLLER_REVISION.kind)
        if not (is_immutable and live is not None) and not is_satisfied(manifest, live):
            found.append(manifest)
    return tuple(found)


def _unused_config_maps(pool: InferencePool, observed: Observed, revisions: Revisions) -> tuple[Manifest, ...]:
    wanted = chat_template(pool)
    names = revisions.config_maps | ({wanted["metadata"]["name"]} if wanted else set())
    live = observed.of_role(CONFIG_MAP.kind, ROLE_LABEL, CHAT_TEMPLATE_ROLE)
    return tuple(each for each in live if each["metadata"]["name"] not in names)


def _notes(size: Size, down: ScaleDown, facts: DeploymentFacts | None) -> tuple[Note, ...]:
    notes = []
    if size.is_change and size.num_desired > size.num_before:
        notes.append(Note(Reason.SCALED_UP, size.why))
    if newly := down.newly_draining:
        notes.append(Note(Reason.DRAINING, f"{', '.join(pod.name for pod in newly)}: {size.why}"))
    if spared := down.spared:
        notes.append(Note(Reason.DRAIN_CANCELLED, f"{', '.join(pod.name for pod in spared)} stays: {size.why}"))
    if facts is not None and down.num_replicas < facts.num_replicas:
        notes.append(Note(Reason.SCALED_DOWN, f"{facts.num_replicas} -> {down.num_replicas} replicas"))
    return tuple(notes)


def _title(manifest: Manifest) -> str:
    digest = json.dumps(manifest.get("spec", {}).get("replicas"))
    return f"{manifest['kind']} {manifest['metadata']['name']}" + (f" replicas {digest}" if digest != "null" else "")
