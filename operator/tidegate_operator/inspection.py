"""What the operator knows of a pool's model, and which inspection Job runs next. Pure.

    no claim ──▶ wait            shape known ──▶ resolved, Jobs are removed
    no Job ────▶ try 1           Job runs ─────▶ inspecting, with the pod's trouble if it cannot start
    Job failed ▶ unsupported: final          anything else: next try after a backoff

A shape is kept in a ControllerRevision named by the model's URI, so it survives its Job. Deleting that revision makes
the operator look again.
"""

import json
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from hashlib import sha256

from tidegate_core.errors import UnsupportedShape
from tidegate_core.launch import ExitCode
from tidegate_core.shape import ModelShape
from tidegate_operator.api.reasons import Reason
from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.manifests.controller_revision import controller_revision
from tidegate_operator.manifests.inspection_job import inspection_job
from tidegate_operator.manifests.labels import MODEL_ROLE, ROLE_LABEL
from tidegate_operator.manifests.pod import Runtime
from tidegate_operator.observed import Inspection, Observed, Termination
from tidegate_operator.resources import CONTROLLER_REVISION, JOB, Manifest

FIRST_RETRY_SECONDS = 10
LONGEST_RETRY_SECONDS = 300
CLAIM_POLL_SECONDS = 10
NO_POD_SECONDS = 10  # a Job gets its pod within a second, or the API server refuses it
_REASON_BY_EXIT = {
    ExitCode.MODEL_UNREACHABLE: Reason.MODEL_NOT_FOUND,
    ExitCode.MODEL_UNSUPPORTED: Reason.MODEL_UNSUPPORTED,
}
_SAID_BY_INSPECTION = (Reason.MODEL_NOT_FOUND, Reason.MODEL_CORRUPT, Reason.MODEL_UNSUPPORTED)


@dataclass(frozen=True)
class ModelFinding:
    """The answer of an inspection, and what has to be written for it."""

    shape: ModelShape | None
    reason: Reason
    message: str
    is_final: bool = False  # another try would say the same
    apply: tuple[Manifest, ...] = ()
    delete: tuple[Manifest, ...] = ()
    requeue_after_seconds: float | None = None


def find_model(pool: InferencePool, observed: Observed, runtime: Runtime, now: datetime) -> ModelFinding:
    """The model's shape if it is known, else the next step towards it."""
    name = _model_revision_name(pool)
    jobs = tuple(child for child in observed.children if child["kind"] == JOB.kind)
    others = tuple(each for each in _model_revisions(observed) if each["metadata"]["name"] != name)
    if (shape := _stored_shape(observed.child(CONTROLLER_REVISION.kind, name))) is not None:
        return _resolved(shape, delete=(*jobs, *others))
    if observed.is_claim_missing:
        message = f"PersistentVolumeClaim {pool.spec.model.claim} does not exist in namespace {pool.metadata.namespace}"
        return ModelFinding(
            None, Reason.CLAIM_NOT_FOUND, f"{message}; create it, or correct model.uri",
            requeue_after_seconds=CLAIM_POLL_SECONDS,
        )  # fmt: skip
    prefix = _job_prefix(pool)
    tries = sorted((i for i in observed.inspections if i.name.startswith(prefix)), key=lambda i: i.attempt)
    if not tries:
        job = inspection_job(pool, f"{prefix}1", runtime)
        return ModelFinding(None, Reason.INSPECTING, "the inspection Job is being created", apply=(job,), delete=jobs)
    last = tries[-1]
    before = tries[-2] if len(tries) > 1 and not last.is_finished else None  # what is known while the next try runs
    kept = {last.name} | ({before.name} if before else set())
    stale = tuple(job for job in jobs if job["metadata"]["name"] not in kept)
    finding = _judge(pool, last, runtime, now) if last.is_finished else _wait(pool, last, before, now)
    return replace(finding, delete=stale)


def _wait(pool: InferencePool, last: Inspection, before: Inspection | None, now: datetime) -> ModelFinding:
    reason, message = Reason.INSPECTING, f"Job {last.name} reads {pool.spec.model.uri}"
    if before is not None:
        reason, message = _fault(before)
        message = f"{pool.spec.model.uri}: {message}"
    if last.trouble:
        message += f"; the pod of Job {last.name} does not start: {last.trouble.reason}: {last.trouble.message}"
    if not last.has_pod and (now - last.created_at).total_seconds() >= NO_POD_SECONDS:
        cause = f"kubectl describe job {last.name} -n {pool.metadata.namespace}"
        reason, message = (
            Reason.PODS_REFUSED,
            f"Job {last.name} has got no pod since {NO_POD_SECONDS} s: `{cause}` says why",
        )
    return ModelFinding(None, reason, message)


def _judge(pool: InferencePool, last: Inspection, runtime: Runtime, now: datetime) -> ModelFinding:
    if (shape := _answered_shape(last.termination)) is not None:
        data = {"uri": pool.spec.model.uri, "shape": json.loads(shape.to_json())}
        revision = controller_revision(pool, _model_revision_name(pool), MODEL_ROLE, number=1, data=data)
        return _resolved(shape, apply=(revision,))  # the Job goes once its answer is stored
    reason, fault = _fault(last)
    message = f"{pool.spec.model.uri}: {fault}"
    if reason is Reason.MODEL_UNSUPPORTED:
        remedy = f"correct model.uri; if the files were replaced in place, delete Job {last.name} to look again"
        return ModelFinding(None, reason, f"{message}; {remedy}", is_final=True)
    wait_seconds = min(FIRST_RETRY_SECONDS * 2 ** min(last.attempt - 1, 10), LONGEST_RETRY_SECONDS)
    due = (last.finished_at or now) + timedelta(seconds=wait_seconds)
    if now < due:
        return ModelFinding(None, reason, message, requeue_after_seconds=(due - now).total_seconds())
    job = inspection_job(pool, f"{_job_prefix(pool)}{last.attempt + 1}", runtime)
    return ModelFinding(None, reason, message, apply=(job,))


def _resolved(
    shape: ModelShape, *, apply: tuple[Manifest, ...] = (), delete: tuple[Manifest, ...] = ()
) -> ModelFinding:
    message = f"{shape.architecture}, {shape.num_parameters:,} parameters, context up to {shape.max_context:,} tokens"
    return ModelFinding(shape, Reason.MODEL_INSPECTED, message, apply=apply, delete=delete)


def _fault(inspection: Inspection) -> tuple[Reason, str]:
    ended = inspection.termination
    if ended is None:
        return Reason.INSPECTION_FAILED, f"Job {inspection.name} failed: {inspection.failure or 'its pod is gone'}"
    words = ended.last_words()
    message = words.message if words else ended.message[-500:] or f"no word, exit code {ended.exit_code}"
    said = next((reason for reason in _SAID_BY_INSPECTION if words and words.reason == reason), None)
    if said is None and ended.exit_code in _REASON_BY_EXIT:
        said = _REASON_BY_EXIT[ExitCode(ended.exit_code)]
    return said or Reason.INSPECTION_FAILED, message


def _answered_shape(ended: Termination | None) -> ModelShape | None:
    return _read_shape(ended.message) if ended is not None and ended.exit_code == ExitCode.OK else None


def _stored_shape(revision: Manifest | None) -> ModelShape | None:
    """A revision that cannot be read counts as absent: the model is inspected again."""
    return None if revision is None else _read_shape(json.dumps(revision.get("data", {}).get("shape")))


def _read_shape(text: str) -> ModelShape | None:
    try:
        return ModelShape.from_json(text)
    except UnsupportedShape:
        return None


def _model_revisions(observed: Observed) -> tuple[Manifest, ...]:
    return observed.of_role(CONTROLLER_REVISION.kind, ROLE_LABEL, MODEL_ROLE)


def _model_revision_name(pool: InferencePool) -> str:
    return f"{pool.metadata.name}-model-{sha256(pool.spec.model.uri.encode()).hexdigest()[:8]}"


def _job_prefix(pool: InferencePool) -> str:
    """Named by all that shapes the Job's pod: a corrected node selector is a new Job, not a stuck old one."""
    inputs = (
        f"{pool.spec.model.uri} {pool.spec.accelerator.resource} {pool.spec.pod.model_dump_json(exclude_defaults=True)}"
    )
    return f"{pool.metadata.name}-inspect-{sha256(inputs.encode()).hexdigest()[:8]}-"
