"""What becomes of a pool that has a template: its size, who drains for it, the Deployment and what its pods need. Pure.

Called by planning.py, the last of its questions.
"""

from dataclasses import dataclass
from datetime import datetime

from tidegate_operator.api.reasons import Reason
from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.decisions.drift import missing
from tidegate_operator.decisions.engine_version import engine_status
from tidegate_operator.decisions.inspection import ModelFinding
from tidegate_operator.decisions.notes import Note
from tidegate_operator.decisions.plan import Plan, PlanSettings
from tidegate_operator.decisions.protection import plan_protection
from tidegate_operator.decisions.revisions import Revisions, TemplateRevision
from tidegate_operator.decisions.rollout import (
    Before,
    Rollout,
    is_replacing,
    num_accelerators,
    replicas_while_replacing,
)
from tidegate_operator.decisions.scale import Size, choose_size, look_seconds
from tidegate_operator.decisions.scaledown import ScaleDown, plan_scale_down
from tidegate_operator.labels import CHAT_TEMPLATE_ROLE, ROLE_LABEL
from tidegate_operator.manifests.config_map import chat_template
from tidegate_operator.manifests.deployment import deployment
from tidegate_operator.manifests.pod_disruption_budget import disruption_budgets, unwanted_disruption_budgets
from tidegate_operator.manifests.service import service
from tidegate_operator.manifests.service_account import service_account
from tidegate_operator.resources import CONFIG_MAP, Manifest
from tidegate_operator.sizing.capacity import candidates, shortage
from tidegate_operator.sizing.fitting import FitFinding
from tidegate_operator.world.observed import DeploymentFacts, Observed
from tidegate_operator.world.quota import LOOK_SECONDS, REFUSAL, REFUSED_LOOK_SECONDS, Room, num_to_order, retry, room


@dataclass(frozen=True)
class Findings:
    """What planning.py has found out before."""

    model: ModelFinding
    fit: FitFinding | None
    before: Before
    revisions: Revisions
    rollout: Rollout


def deployed(
    pool: InferencePool, observed: Observed, settings: PlanSettings, now: datetime, findings: Findings
) -> Plan:
    """The plan of a pool with a template, but for what does not depend on it."""
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
    wanted.append(_wanted_deployment(pool, rollout, size, num_ordered, _retry(facts, allowed)))
    waits = (
        findings.model.requeue_after_seconds,
        down.requeue_after_seconds,
        LOOK_SECONDS if held_by_quota else None,
        REFUSED_LOOK_SECONDS if _refused_since(facts) else None,
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
        apply=missing(observed, tuple(wanted)),
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


def _scale_down(pool: InferencePool, observed: Observed, findings: Findings, size: Size, *, now: datetime) -> ScaleDown:
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


def _num_to_order(observed: Observed, findings: Findings, num_wanted: int, allowed: Room) -> int:
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


def _children(pool: InferencePool) -> list[Manifest]:
    """What the Deployment's pods need first."""
    found = chat_template(pool)
    return [service_account(pool), *([found] if found else []), *disruption_budgets(pool), service(pool)]


def _refused_since(facts: DeploymentFacts | None) -> datetime | None:
    """By a quota."""
    return facts.refused_since if facts is not None and REFUSAL in facts.refusal else None


def _retry(facts: DeploymentFacts | None, allowed: Room) -> str:
    return retry(facts.retried if facts else "", refused_since=_refused_since(facts), room=allowed)


def _wanted_deployment(pool: InferencePool, rollout: Rollout, size: Size, num_ordered: int, retried: str) -> Manifest:
    return deployment(
        pool,
        rollout.current.template,
        num_replicas=num_ordered,
        num_desired=size.num_desired,
        strategy=rollout.strategy,
        rollout_memory=rollout.to_annotation(),
        retried=retried,
    )


def _unused_config_maps(pool: InferencePool, observed: Observed, revisions: Revisions) -> tuple[Manifest, ...]:
    wanted = chat_template(pool)
    names = revisions.config_maps | ({wanted["metadata"]["name"]} if wanted else set())
    live = observed.of_role(CONFIG_MAP.kind, ROLE_LABEL, CHAT_TEMPLATE_ROLE)
    return tuple(each for each in live if each["metadata"]["name"] not in names)


def _is_rolling_out(observed: Observed, facts: DeploymentFacts | None, current: TemplateRevision) -> bool:
    templates = {pod.template for pod in observed.pods if not pod.is_terminating} | {current.template_hash}
    return facts is not None and (len(templates) > 1 or not facts.is_settled)


def _shortage(pool: InferencePool, observed: Observed, current: TemplateRevision) -> str:
    """What the scheduler does not say: how many devices are free where. Only while a replica waits for a node."""
    is_waiting = any(pod.trouble and pod.trouble.reason is Reason.UNSCHEDULABLE for pod in observed.pods)
    if not is_waiting or observed.nodes is None or pool.spec.accelerator.is_cpu:
        return ""
    resource = pool.spec.accelerator.resource
    return shortage(candidates(pool, observed.nodes), resource, num_accelerators(current.template, resource))


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
