"""What the operator knows of a pool's model, and which inspection Job runs next. Pure.

    no claim ──▶ wait            shape known ──▶ resolved, Jobs are removed
    no Job ────▶ try 1           Job runs ─────▶ inspecting, with the pod's trouble if it cannot start
    Job failed ▶ unsupported: final          anything else: next try after a backoff

The answer is kept in a ControllerRevision named by the model's URI and, at a hub, its revision: so it survives its Job,
and a branch that moves on changes nothing by itself. Deleting that revision makes the operator look again.
"""

import json
from dataclasses import dataclass, replace
from datetime import datetime
from hashlib import sha256

from tidegate_core.errors import UnsupportedShape
from tidegate_core.inspected import Inspected
from tidegate_core.quantity import format_bytes
from tidegate_core.shape import ModelShape
from tidegate_core.termination import ExitCode
from tidegate_operator.api.reasons import Reason
from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.decisions.jobs import fault, refusal_of_pod, seconds_until_retry, trouble_of_pod
from tidegate_operator.labels import INSPECTION_ROLE, MODEL_ROLE, ROLE_LABEL
from tidegate_operator.manifests.controller_revision import controller_revision
from tidegate_operator.manifests.inspection_job import inspection_job
from tidegate_operator.manifests.model_volume import HubFiles
from tidegate_operator.manifests.pod import Runtime
from tidegate_operator.resources import CONTROLLER_REVISION, JOB, Manifest
from tidegate_operator.world.observed import Inspection, Observed, Termination

CLAIM_POLL_SECONDS = 10


@dataclass(frozen=True)
class ModelFinding:
    """The answer of an inspection, and what has to be written for it."""

    inspected: Inspected | None
    reason: Reason
    message: str
    is_final: bool = False  # another try would say the same
    apply: tuple[Manifest, ...] = ()
    delete: tuple[Manifest, ...] = ()
    requeue_after_seconds: float | None = None

    @property
    def shape(self) -> ModelShape | None:
        return self.inspected.shape if self.inspected else None

    @property
    def files(self) -> HubFiles | None:
        """Of a hub's model."""
        if self.inspected is None or self.inspected.snapshot is None:
            return None
        return HubFiles(self.inspected.snapshot, self.inspected.download_bytes)


def find_model(pool: InferencePool, observed: Observed, runtime: Runtime, now: datetime) -> ModelFinding:
    """The model's shape if it is known, else the next step towards it."""
    name = _model_revision_name(pool)
    jobs = observed.of_role(JOB.kind, ROLE_LABEL, INSPECTION_ROLE)
    stored = observed.child(CONTROLLER_REVISION.kind, name)
    if (known := stored_answer(stored)) is not None:
        others = (each for each in _model_revisions(observed) if each["metadata"]["name"] != name)
        return _resolved(pool, known, delete=(*jobs, *others))
    found = _look(pool, observed, jobs, runtime, now)
    return found if stored is None else replace(found, delete=(*found.delete, stored))  # its name is for the new one


def _look(
    pool: InferencePool, observed: Observed, jobs: tuple[Manifest, ...], runtime: Runtime, now: datetime
) -> ModelFinding:
    if observed.is_claim_missing:
        message = f"PersistentVolumeClaim {pool.spec.model.claim} does not exist in namespace {pool.metadata.namespace}"
        return ModelFinding(
            None, Reason.CLAIM_NOT_FOUND, f"{message}; create it, or correct model.uri",
            requeue_after_seconds=CLAIM_POLL_SECONDS,
        )  # fmt: skip
    prefix = _job_prefix(pool, runtime)
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
        reason, message = fault(before)
        message = f"{pool.spec.model.uri}: {message}"
    if refused := refusal_of_pod(pool, last, now):
        return ModelFinding(None, Reason.PODS_REFUSED, refused)
    return ModelFinding(None, reason, message + trouble_of_pod(pool, last))


def model_revision(pool: InferencePool, answer: Inspected) -> Manifest:
    """What an inspection leaves behind."""
    data = {"uri": pool.spec.model.uri, "shape": json.loads(answer.to_json())}
    return controller_revision(pool, _model_revision_name(pool), MODEL_ROLE, number=1, data=data)


def _judge(pool: InferencePool, last: Inspection, runtime: Runtime, now: datetime) -> ModelFinding:
    if (answer := _answered(last.termination)) is not None:
        return _resolved(pool, answer, apply=(model_revision(pool, answer),))  # then the Job goes
    reason, said = fault(last)
    message = f"{pool.spec.model.uri}: {said}"
    if reason is Reason.MODEL_UNSUPPORTED:
        remedy = f"correct model.uri; if the files were replaced in place, delete Job {last.name} to look again"
        return ModelFinding(None, reason, f"{message}; {remedy}", is_final=True)
    if (seconds := seconds_until_retry(last, now)) > 0:
        return ModelFinding(None, reason, message, requeue_after_seconds=seconds)
    job = inspection_job(pool, f"{_job_prefix(pool, runtime)}{last.attempt + 1}", runtime)
    return ModelFinding(None, reason, message, apply=(job,))


def _resolved(
    pool: InferencePool, known: Inspected, *, apply: tuple[Manifest, ...] = (), delete: tuple[Manifest, ...] = ()
) -> ModelFinding:
    shape = known.shape
    message = f"{shape.architecture}, {shape.num_parameters:,} parameters, context up to {shape.max_context:,} tokens"
    if known.snapshot is not None:
        message += f"; commit {known.snapshot.commit}"
        if pool.spec.cache is None:
            message += f"; without spec.cache every replica fetches {format_bytes(known.download_bytes)} when it starts"
    return ModelFinding(known, Reason.MODEL_INSPECTED, message, apply=apply, delete=delete)


def _answered(ended: Termination | None) -> Inspected | None:
    return _read(ended.message) if ended is not None and ended.exit_code == ExitCode.OK else None


def is_about_model_of(revision: Manifest, pool: InferencePool) -> bool:
    """Whether it keeps the answer about the pool's model, whichever pool had that inspected."""
    return str(revision["metadata"]["name"]).endswith(_model_suffix(pool))


def stored_answer(revision: Manifest | None) -> Inspected | None:
    """A revision that cannot be read counts as absent: the model is inspected again."""
    return None if revision is None else _read(json.dumps(revision.get("data", {}).get("shape")))


def _read(text: str) -> Inspected | None:
    try:
        return Inspected.from_json(text)
    except UnsupportedShape:
        return None


def _model_revisions(observed: Observed) -> tuple[Manifest, ...]:
    return observed.of_role(CONTROLLER_REVISION.kind, ROLE_LABEL, MODEL_ROLE)


def _model_revision_name(pool: InferencePool) -> str:
    return pool.metadata.name + _model_suffix(pool)


def _model_suffix(pool: InferencePool) -> str:
    model = pool.spec.model
    named = f"{model.uri}@{model.revision}" if model.revision else model.uri
    return f"-model-{sha256(named.encode()).hexdigest()[:8]}"


def _job_prefix(pool: InferencePool, runtime: Runtime) -> str:
    """Named by all that shapes the Job's pod: a corrected node selector is a new Job, not a stuck old one.

    The image is part of it: what an older engine did not serve, a newer one looks at again.
    """
    model, pod = pool.spec.model, pool.spec.pod
    token = model.token_secret_ref.model_dump_json() if model.token_secret_ref else ""
    inputs = (
        f"{model.uri} {model.revision or ''} {token} {model.pull_policy or ''} {runtime.image} {runtime.hub_endpoint} "
        f"{pool.spec.accelerator.resource} {pod.model_dump_json(exclude_defaults=True)}"
    )
    return f"{pool.metadata.name}-inspect-{sha256(inputs.encode()).hexdigest()[:8]}-"
