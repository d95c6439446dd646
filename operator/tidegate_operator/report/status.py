"""The pool's status from what was observed, planned and refused. Pure.

It changes only when something a reader would act on changes: no live figures, and a condition's time moves only when
its status flips. What is returned went through the model that also makes the CRD's schema, so comparing it with the
stored status says whether to write, and a field that the server would drop cannot cause endless writes.
"""

from datetime import datetime

from tidegate_operator.api.conditions import Condition
from tidegate_operator.api.reasons import Reason
from tidegate_operator.api.status import (
    MAX_SCALING_HISTORY,
    InferencePoolStatus,
    ModelStatus,
    ScalerStatus,
    ScalingEvent,
    SizingStatus,
)
from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.decisions.plan import Plan, Refusal
from tidegate_operator.labels import text_selector
from tidegate_operator.manifests.service import endpoint
from tidegate_operator.report.cost import cost_of
from tidegate_operator.report.findings import Finding, Replicas, find_all
from tidegate_operator.resources import POOL, Manifest
from tidegate_operator.sizing.experience import learn, with_measured
from tidegate_operator.sizing.fitting import model_status, sizing_status
from tidegate_operator.world.cold_start import measure
from tidegate_operator.world.observed import Observed

MAX_MESSAGE_CHARACTERS = 2000
_NOT_DECIDED_BY_LOAD = (Reason.SUSPENDED, Reason.SCALING_MANUAL)


def status(
    pool: InferencePool, observed: Observed, plan: Plan, refusals: tuple[Refusal, ...], now: datetime
) -> InferencePoolStatus:
    """The new status; equal to the old one when nothing that matters has changed."""
    before, now = pool.status, now.replace(microsecond=0)
    replicas, sizing = Replicas.of(observed, plan), _sizing(pool, observed, plan)
    findings = find_all(pool, plan, refusals, replicas)
    num_desired = plan.size.num_desired if plan.size else before.desired_replicas if plan.blocked else 0
    return InferencePoolStatus(
        observed_generation=pool.metadata.generation,
        conditions=tuple(_condition(pool, finding, now) for finding in findings),
        model=_model(before, plan),
        sizing=sizing,
        learned_sizing=learn(before.learned_sizing, sizing, plan.engine),
        rollout=plan.rollout.to_status() if plan.rollout else before.rollout if plan.blocked else None,
        engine=plan.engine or (before.engine if plan.blocked else None),
        replicas=replicas.num_live,
        ready_replicas=replicas.num_ready,
        updated_replicas=replicas.num_updated,
        desired_replicas=num_desired,
        ready=f"{replicas.num_ready}/{num_desired}",
        phase=_phase(findings),
        selector=text_selector(pool.metadata.name),
        scaling_history=_history(before, plan, now),
        scaler=_scaler(before, plan),
        cold_start=measure(before.cold_start, observed),
        cost=cost_of(pool, observed, plan.revisions.current.template if plan.revisions.current else None),
        endpoint=endpoint(pool),
    )


def status_manifest(pool: InferencePool, new: InferencePoolStatus) -> Manifest:
    """For a server-side apply of the status subresource."""
    return {
        "apiVersion": POOL.api_version,
        "kind": POOL.kind,
        "metadata": {"name": pool.metadata.name, "namespace": pool.metadata.namespace, "uid": pool.metadata.uid},
        "status": new.to_wire(),
    }


def _condition(pool: InferencePool, finding: Finding, now: datetime) -> Condition:
    before = pool.status.condition(finding.type)
    flipped = before is None or before.status != finding.status
    return Condition(
        type=finding.type,
        status=finding.status,
        reason=finding.reason,
        message=finding.message[:MAX_MESSAGE_CHARACTERS],
        observed_generation=pool.metadata.generation,
        last_transition_time=now if before is None or flipped else before.last_transition_time,
    )


def _phase(findings: tuple[Finding, ...]) -> str:
    """One word: Ready, or the reason why not."""
    ready = findings[0]
    return "Ready" if ready.status == "True" else str(ready.reason)


def _model(before: InferencePoolStatus, plan: Plan) -> ModelStatus | None:
    if plan.model and plan.model.shape and plan.fit and plan.fit.fit:
        return model_status(plan.model.shape, plan.fit.fit).model_copy(update={"revision": _commit(plan)})
    return before.model if plan.revisions.current or plan.blocked else None


def _commit(plan: Plan) -> str | None:
    """Of a hub's model: what the pods have, whatever its branch says by now; before there are any, what was found."""
    current = plan.revisions.current
    if current is not None and plan.revisions.is_of_these_inputs:
        return current.snapshot.partition("@")[2] or None
    return plan.model.files.snapshot.commit if plan.model and plan.model.files else None


def _sizing(pool: InferencePool, observed: Observed, plan: Plan) -> SizingStatus | None:
    """What the current template was sized for; the spec's numbers where it does not fit and nothing is deployed."""
    before, current = pool.status, plan.revisions.current
    if current is None and plan.fit and plan.fit.fit and not plan.fit.is_good:
        return sizing_status(pool, plan.fit.fit, plan.fit.basis)
    if current is None:
        return before.sizing if plan.blocked else None
    return with_measured(current.sizing, before.sizing, current.template_hash, observed.pods, observed.loads)


def _history(before: InferencePoolStatus, plan: Plan, now: datetime) -> tuple[ScalingEvent, ...]:
    size = plan.size
    if size is None or not size.is_change:
        return before.scaling_history
    event = ScalingEvent.model_validate({
        "time": now, "from": size.num_before, "to": size.num_desired, "reason": size.why[:1024],
        "inputs": dict(size.inputs),
    })  # fmt: skip
    return (event, *before.scaling_history)[:MAX_SCALING_HISTORY]


def _scaler(before: InferencePoolStatus, plan: Plan) -> ScalerStatus | None:
    """Written with its decisions, not by the clock."""
    size = plan.size
    if size is None or not size.is_change or size.history is None or size.limit in _NOT_DECIDED_BY_LOAD:
        return before.scaler
    return ScalerStatus.of(size.history.memory)
