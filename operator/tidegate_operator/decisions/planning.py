"""How a plan comes about: the questions of a pool in their order, each answered by its module. Pure.

    blocked? ─▶ model known? ─▶ fits? ─▶ flags known? ─▶ which template? ─▶ how many replicas? ─▶ who drains?
             ─▶ manifests, deletions

What is already so stays out of the plan. A template that was good stays applied while a newer wish waits for an answer
or does not fit. reconcile.py asks; deployed.py knows what follows once there is a template.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime

from tidegate_core.squeeze import is_squeezed
from tidegate_core.telemetry import LoadReport
from tidegate_operator.api.reasons import Reason
from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.decisions.deployed import Findings, deployed
from tidegate_operator.decisions.drain_time import drain_seconds
from tidegate_operator.decisions.drift import missing
from tidegate_operator.decisions.engine_version import EngineDefaults
from tidegate_operator.decisions.extra_args import refusal
from tidegate_operator.decisions.failed_pods import judge_failed_pods
from tidegate_operator.decisions.inspection import ModelFinding, find_model
from tidegate_operator.decisions.integration import integrate
from tidegate_operator.decisions.model_cache import CacheFinding, find_cache, unwanted_claims
from tidegate_operator.decisions.plan import START_POLL_SECONDS, Blocked, Plan, PlanSettings
from tidegate_operator.decisions.rendering import render_revision
from tidegate_operator.decisions.revisions import Deployed, Revisions, TemplateRevision, Wish, choose_revision
from tidegate_operator.decisions.rollout import (
    Before,
    plan_rollout,
)
from tidegate_operator.decisions.scale import Size
from tidegate_operator.labels import DESIRED_ANNOTATION
from tidegate_operator.manifests.model_volume import HubFiles
from tidegate_operator.manifests.network_policy import Peers, network_policies, unwanted_network_policies
from tidegate_operator.manifests.pod import Runtime
from tidegate_operator.resources import DEPLOYMENT
from tidegate_operator.sizing.advice import resize_advice
from tidegate_operator.sizing.experience import Experience
from tidegate_operator.sizing.fitting import FitFinding, find_fit
from tidegate_operator.world.observed import Observed
from tidegate_operator.world.readers import read_deployment

LEFTOVER_POLL_SECONDS = 1.0


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
        steps = deployed(pool, observed, settings, now, Findings(model, fit, before, revisions, rollout))
    steps = replace(steps, advice=_advice(pool, model, fit, steps.size))
    steps = _with_cache(replace(steps, args_refused=args_refused, cache=cache), pool, observed)
    steps = _with_network_policy(steps, pool, observed, settings.peers)
    steps = _with_neighbours(steps, pool, observed, settings)
    return replace(steps, delete=(*steps.delete, *failed.delete), failed_pods=failed)


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


def _before(pool: InferencePool, observed: Observed) -> Before:
    live = observed.child(DEPLOYMENT.kind, pool.metadata.name)
    return Before.of(live, None if live is None else read_deployment(live, DESIRED_ANNOTATION))


def _deployed_templates(before: Before) -> Deployed:
    given_up = before.memory.given_up
    return Deployed(before.template, before.memory.good, given_up.wish if given_up else None)


def _as_planned(
    pool: InferencePool, observed: Observed, model: ModelFinding, fit: FitFinding | None, revisions: Revisions
) -> FitFinding | None:
    """What was learned since a template was made, and nodes that came or went, change nothing of that template."""
    if model.shape is None or fit is None or fit.basis is None or not revisions.is_of_these_inputs:
        return fit
    if revisions.current is None:
        return fit
    planned = Experience.of_template(revisions.current.sizing)
    if fit.is_good and (planned.applied, planned.num_devices) == (fit.basis.loaded_percent, fit.basis.tensor_parallel):
        return fit
    return find_fit(pool, model.shape, observed.nodes, planned)


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
        apply=missing(observed, model.apply),
        model=model,
        fit=fit,
        requeue_after_seconds=model.requeue_after_seconds or START_POLL_SECONDS,
    )


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
    apply = (*missing(observed, found.apply), *steps.apply)
    return replace(steps, apply=apply, delete=delete, requeue_after_seconds=min(waits))


def _with_network_policy(steps: Plan, pool: InferencePool, observed: Observed, peers: Peers) -> Plan:
    """Before the first pod is there."""
    policies = missing(observed, network_policies(pool, peers))
    unwanted = unwanted_network_policies(observed, peers)
    return replace(steps, apply=(*policies, *steps.apply), delete=(*steps.delete, *unwanted))


def _with_neighbours(steps: Plan, pool: InferencePool, observed: Observed, settings: PlanSettings) -> Plan:
    """Children for other projects come once there is something to monitor or to route to."""
    found = integrate(pool, observed.around, settings.monitoring)
    wanted = found.apply if steps.size is not None else ()
    return replace(
        steps, apply=(*steps.apply, *wanted), delete=(*steps.delete, *found.delete), integration=found
    )  # fmt: skip
