"""What a Plan and the observed pods mean, question by question: the conditions of a pool, before they get times. Pure.

Each function answers one condition as (status, reason, message); status.py puts them together.
"""

from dataclasses import dataclass

from tidegate_operator.api.conditions import BAD_WHEN_TRUE, ConditionStatus, ConditionType
from tidegate_operator.api.reasons import Reason
from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.decisions.plan import Plan, Refusal
from tidegate_operator.decisions.scale import Size, is_serving
from tidegate_operator.world.observed import Observed, Trouble


@dataclass(frozen=True)
class Finding:
    """One answer."""

    type: ConditionType
    status: ConditionStatus
    reason: Reason
    message: str

    @property
    def is_good(self) -> bool:
        """Of most conditions True is good, of a few it is not."""
        return self.status == ("False" if self.type in BAD_WHEN_TRUE else "True")


@dataclass(frozen=True)
class Replicas:
    """Pods, counted."""

    num_live: int  # exist and are not leaving
    num_ready: int  # serve
    num_updated: int  # have the current template
    num_ready_updated: int
    num_running: int  # have their volumes, and a container that runs
    num_fetching: int  # of these, fetch their model first
    trouble: Trouble | None  # why a pod cannot be created, or the first does not come up

    @classmethod
    def of(cls, observed: Observed, plan: Plan) -> "Replicas":
        current = plan.revisions.current.template_hash if plan.revisions.current else None
        live = [pod for pod in observed.pods if not pod.is_terminating and pod.draining_since is None]
        ready = [pod for pod in live if is_serving(pod)]
        updated = [pod for pod in live if pod.template == current]
        troubles = [pod.trouble for pod in live if pod.trouble and not pod.is_ready]
        if plan.held_by_quota:
            troubles.insert(0, Trouble(Reason.QUOTA_EXCEEDED, plan.held_by_quota))
        if plan.pods_refused:
            reason = Reason.QUOTA_EXCEEDED if plan.is_refused_by_quota else Reason.PODS_REFUSED
            troubles.insert(0, Trouble(reason, plan.pods_refused))
        return cls(
            num_live=len(live),
            num_ready=len(ready),
            num_updated=len(updated),
            num_ready_updated=sum(map(is_serving, updated)),
            num_running=sum(pod.is_running or pod.is_fetching for pod in live),
            num_fetching=sum(pod.is_fetching for pod in live),
            trouble=next(iter(troubles), None),
        )


def find_all(pool: InferencePool, plan: Plan, refusals: tuple[Refusal, ...], replicas: Replicas) -> tuple[Finding, ...]:
    """Every condition that is to be shown; Reconciling and Stalled only while they are true."""
    parts = [
        _model(plan),
        _fit(plan, replicas),
        _cache(plan),
        _available(plan, replicas),
        _progressing(pool, plan, replicas),
    ]
    parts += [_metrics(plan.size), _resize(plan), _scaling(plan), _integrated(plan, refusals), _nodes(plan)]
    found = [part for part in parts if part is not None]
    stalled = _stalled(plan, refusals, replicas)
    ready = _ready(pool, plan, replicas, stalled, found)
    reconciling = None if stalled or pool.spec.suspend else _reconciling(ready)
    return (ready, *(each for each in (reconciling, stalled) if each is not None), *found)


def _model(plan: Plan) -> Finding | None:
    if plan.model is None:
        return None
    unknown = plan.model.reason is Reason.INSPECTING
    status: ConditionStatus = "True" if plan.model.shape else "Unknown" if unknown else "False"
    return Finding(ConditionType.MODEL_RESOLVED, status, plan.model.reason, plan.model.message)


def _cache(plan: Plan) -> Finding | None:
    if plan.cache is None:
        return None
    status: ConditionStatus = "True" if plan.cache.is_ready else "False"
    return Finding(ConditionType.MODEL_CACHED, status, plan.cache.reason, plan.cache.message)


def _fit(plan: Plan, replicas: Replicas) -> Finding | None:
    if plan.fit is None:
        return None
    status: ConditionStatus = "Unknown" if plan.fit.fit is None else "True" if plan.fit.fit.fits else "False"
    untouched = "" if plan.fit.is_good else _still_serving(plan, replicas)
    return Finding(ConditionType.FITS, status, plan.fit.reason, plan.fit.message + untouched)


def _still_serving(plan: Plan, replicas: Replicas) -> str:
    """What a spec that cannot be carried out leaves untouched."""
    current = plan.revisions.current
    if current is None or not replicas.num_ready:
        return ""
    who = "1 replica goes" if replicas.num_ready == 1 else f"{replicas.num_ready} replicas go"
    slots = "1 slot" if current.sizing.slots == 1 else f"{current.sizing.slots:,} slots"
    served = f"context {current.sizing.context:,}, {slots}"
    return f"; {who} on serving with the last template that fitted ({served})"


def _available(plan: Plan, replicas: Replicas) -> Finding:
    if replicas.num_ready:
        return Finding(ConditionType.AVAILABLE, "True", Reason.REPLICA_SERVING, "the pool answers requests")
    if plan.size is not None and plan.size.limit is Reason.SUSPENDED:
        return Finding(ConditionType.AVAILABLE, "False", Reason.SUSPENDED, "spec.suspend is true")
    return Finding(ConditionType.AVAILABLE, "False", Reason.NO_REPLICA_READY, "no replica serves yet")


def _progressing(pool: InferencePool, plan: Plan, replicas: Replicas) -> Finding | None:
    size, kind = plan.size, ConditionType.PROGRESSING
    if size is None:
        return None
    if replicas.trouble:
        is_waiting = replicas.trouble.reason is Reason.UNSCHEDULABLE and plan.shortage
        free = f"; {plan.shortage}" if is_waiting else ""
        return Finding(kind, "False", replicas.trouble.reason, replicas.trouble.message + free)
    if replicas.num_updated < replicas.num_live:
        counted = f"{replicas.num_updated} of {replicas.num_live} replicas have the current template"
        how = f" ({plan.rollout.strategy}: {plan.rollout.memory.why})" if plan.rollout else ""
        return Finding(kind, "True", Reason.ROLLING_OUT, counted + how + _wait_for(pool, replicas) + _pause(pool, plan))
    if replicas.num_live != size.num_desired:
        return Finding(kind, "True", Reason.SCALING, f"{replicas.num_live} of {size.num_desired} replicas exist")
    if replicas.num_ready < size.num_desired:
        counted = f"{replicas.num_ready} of {size.num_desired} replicas are ready"
        return Finding(kind, "True", Reason.REPLICAS_STARTING, counted + _wait_for(pool, replicas))
    if reason := _held_back(plan):
        return Finding(kind, "False", reason, "the change was not rolled out")
    return Finding(kind, "True", Reason.UP_TO_DATE, "every replica has the current template")


def _pause(pool: InferencePool, plan: Plan) -> str:
    is_paused = plan.rollout is not None and plan.rollout.is_paused
    return f"; its Deployment is paused: kubectl rollout resume deployment/{pool.metadata.name}" if is_paused else ""


def _wait_for(pool: InferencePool, replicas: Replicas) -> str:
    """Pods wait for a missing Secret without a word in their status, and the operator may not look at Secrets."""
    fetching = f"; {replicas.num_fetching} fetch the model" if replicas.num_fetching else ""
    spec = pool.spec
    secrets = [spec.access.api_keys_secret_ref, spec.model.token_secret_ref if spec.cache is None else None]
    named = [f"a Secret {secret.name} with the entry {secret.key}" for secret in secrets if secret is not None]
    if not named or replicas.num_running == replicas.num_live:
        return fetching
    return f"{fetching}; pods start once there is {' and '.join(named)}"


def _held_back(plan: Plan) -> Reason | None:
    """Why the spec's change is in no template; None: it is, or the answer is still being looked for."""
    if plan.revisions.is_of_these_inputs:
        return None
    if plan.cache is not None and not plan.cache.is_ready:
        return plan.cache.reason
    if plan.fit is not None and plan.fit.is_good:
        return Reason.ENGINE_ARGS_REFUSED if plan.args_refused else Reason.APPLY_FAILED
    if plan.fit is not None:
        return plan.fit.reason
    return plan.model.reason if plan.model and plan.model.reason is not Reason.INSPECTING else None


def _resize(plan: Plan) -> Finding | None:
    if not plan.advice:
        return None
    return Finding(ConditionType.RESIZE_ADVISED, "True", Reason.PREEMPTIONS_PERSIST, plan.advice)


def _nodes(plan: Plan) -> Finding | None:
    if not plan.failed_pods.nodes:
        return None
    return Finding(ConditionType.NODES_FAILING, "True", Reason.PODS_FAIL_ON_NODE, plan.failed_pods.message)


def _metrics(size: Size | None) -> Finding | None:
    if size is None or size.has_metrics is None:
        return None
    if size.has_metrics:
        return Finding(
            ConditionType.METRICS_AVAILABLE, "True", Reason.METRICS_FRESH, "ready replicas report their load"
        )
    return Finding(ConditionType.METRICS_AVAILABLE, "False", Reason.METRICS_STALE, size.silence)


def _scaling(plan: Plan) -> Finding | None:
    size, kind = plan.size, ConditionType.SCALING_LIMITED
    if size is None or size.limit is Reason.SUSPENDED:
        return None
    if plan.integration and plan.integration.scalers:
        return Finding(kind, "True", Reason.FOREIGN_SCALER, plan.integration.scalers)
    is_free = size.limit in (Reason.WITHIN_BOUNDS, Reason.SCALING_MANUAL)
    return Finding(kind, "False" if is_free else "True", size.limit, size.limit_message)


def _refused(refusals: tuple[Refusal, ...], *, is_optional: bool) -> str:
    return "; ".join(f"{each.title}: {each.message}" for each in refusals if each.is_optional is is_optional)


def _integrated(plan: Plan, refusals: tuple[Refusal, ...]) -> Finding | None:
    found, kind = plan.integration, ConditionType.INTEGRATED
    if found is None or not (found.is_asked_for or found.trouble):
        return None
    if found.trouble:
        return Finding(kind, "False", *found.trouble)
    if said := _refused(refusals, is_optional=True):
        return Finding(kind, "False", Reason.APPLY_FAILED, said)
    return Finding(kind, "True", Reason.INTEGRATED, "what other projects need of this pool is there")


def _stalled(plan: Plan, refusals: tuple[Refusal, ...], replicas: Replicas) -> Finding | None:
    """Only what no retry can heal."""
    kind = ConditionType.STALLED
    if plan.blocked and plan.blocked.is_final:
        return Finding(kind, "True", plan.blocked.reason, plan.blocked.message)
    if said := _refused(refusals, is_optional=False):
        return Finding(kind, "True", Reason.APPLY_FAILED, said)
    if plan.model and plan.model.is_final:
        return Finding(kind, "True", plan.model.reason, plan.model.message)
    if plan.fit and not plan.fit.is_good and not plan.revisions.is_of_these_inputs:
        return Finding(kind, "True", plan.fit.reason, plan.fit.message + _still_serving(plan, replicas))
    if plan.args_refused and not plan.revisions.is_of_these_inputs:
        said = plan.args_refused + _still_serving(plan, replicas)
        return Finding(kind, "True", Reason.ENGINE_ARGS_REFUSED, said)
    return _given_up(plan, replicas)


def _given_up(plan: Plan, replicas: Replicas) -> Finding | None:
    """A template that never became ready: taken back, or all there is."""
    kind, rollout = ConditionType.STALLED, plan.rollout
    if rollout is None:
        return None
    if cause := rollout.given_up:
        said = f"template {cause.revision} was given up: {cause.reason}: {cause.message}"
        return Finding(
            kind, "True", Reason.ROLLOUT_ABORTED,
            f"{said}{_still_serving(plan, replicas)}; correct the spec, or change a pod annotation to try it again",
        )  # fmt: skip
    if failing := rollout.failing:
        said = f"{failing.message}; there is no earlier template to go back to"
        return Finding(kind, "True", failing.reason, said)
    return None


def _ready(
    pool: InferencePool, plan: Plan, replicas: Replicas, stalled: Finding | None, found: list[Finding]
) -> Finding:
    """The first thing that keeps the pool from being what its spec says."""
    kind = ConditionType.READY
    if stalled:
        return Finding(kind, "False", stalled.reason, stalled.message)
    if pool.spec.suspend:
        return Finding(kind, "False", Reason.SUSPENDED, "spec.suspend is true")
    if plan.blocked:
        return Finding(kind, "False", plan.blocked.reason, plan.blocked.message)
    if plan.size is not None and plan.revisions.is_of_these_inputs:
        if replicas.num_ready_updated >= plan.size.num_desired and replicas.num_updated == replicas.num_live:
            serving = f"{replicas.num_ready} of {plan.size.num_desired} replicas serve"
            return Finding(kind, "True", Reason.ALL_REPLICAS_READY, serving)
        progress = next(each for each in found if each.type is ConditionType.PROGRESSING)
        return Finding(kind, "False", progress.reason, progress.message)
    cause = next((each for each in found if not each.is_good), None)
    if cause is None:
        return Finding(kind, "False", Reason.RECONCILING, "the pool's replicas are being prepared")
    return Finding(kind, "False", cause.reason, cause.message)


def _reconciling(ready: Finding) -> Finding | None:
    if ready.status == "True":
        return None
    return Finding(ConditionType.RECONCILING, "True", ready.reason, ready.message)
