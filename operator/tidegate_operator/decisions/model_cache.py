"""What becomes of a pool's cache: the claim, the download into it, and whether pods may be made that read it. Pure.

    model known and fits ─▶ no claim ─▶ claim ─▶ snapshot on it? ── yes ─▶ ready
                                                  └─ no ─▶ Job: try 1, 2, ... each goes on where the last one ended

The claim itself says what it holds. Snapshots that no kept template uses are removed by the next download.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from hashlib import sha256

from tidegate_core.quantity import format_bytes
from tidegate_core.termination import ExitCode
from tidegate_operator.api.model import AccessMode, ModelCache
from tidegate_operator.api.reasons import Reason
from tidegate_operator.api.spec import ScalingMode
from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.decisions.drift import is_satisfied, stamped
from tidegate_operator.decisions.inspection import CLAIM_POLL_SECONDS
from tidegate_operator.decisions.jobs import fault, refusal_of_pod, seconds_until_retry, trouble_of_pod
from tidegate_operator.decisions.revisions import stored_revisions
from tidegate_operator.labels import (
    CACHE_ROLE,
    DOWNLOAD_ROLE,
    POOL_LABEL,
    ROLE_LABEL,
    cache_name,
)
from tidegate_operator.manifests.cache_claim import cache_claim, held_by
from tidegate_operator.manifests.download import Place, download_job
from tidegate_operator.manifests.model_volume import HubFiles
from tidegate_operator.manifests.pod import Runtime
from tidegate_operator.resources import JOB, PERSISTENT_VOLUME_CLAIM, Manifest
from tidegate_operator.sizing.capacity import candidates
from tidegate_operator.world.observed import Inspection, Observed

SOON_SECONDS = 1.0  # watches tell of what was just written
_SHARED = {AccessMode.READ_WRITE_MANY, AccessMode.READ_ONLY_MANY}


@dataclass(frozen=True)
class CacheFinding:
    """The state of a pool's cache, and what has to be written for it."""

    is_ready: bool
    reason: Reason
    message: str
    apply: tuple[Manifest, ...] = ()
    delete: tuple[Manifest, ...] = ()
    requeue_after_seconds: float | None = None


def find_cache(
    pool: InferencePool, observed: Observed, files: HubFiles, runtime: Runtime, now: datetime
) -> CacheFinding | None:
    """None for a pool without one."""
    if pool.spec.cache is None:
        return None
    asked = _Asked(pool, pool.spec.cache, observed, files)
    if asked.claim is not None and not _is_ours(asked.claim, pool):
        message = f"PersistentVolumeClaim {cache_name(pool)} is not this pool's cache; rename the pool, or delete it"
        return CacheFinding(False, Reason.CHILD_NOT_OURS, message, requeue_after_seconds=CLAIM_POLL_SECONDS)
    holds = held_by(asked.claim)
    jobs = observed.of_role(JOB.kind, ROLE_LABEL, DOWNLOAD_ROLE)
    if files.snapshot.name in holds:
        return CacheFinding(True, *_ready(asked), apply=_claim_if_changed(asked, holds), delete=jobs)
    kept = holds & {revision.snapshot for revision in stored_revisions(observed)}  # to be able to go back
    if asked.claim is None or asked.has_arrived:
        held = kept | {files.snapshot.name} if asked.has_arrived else kept
        message = f"{cache_name(pool)} {'has received' if asked.has_arrived else 'is being made for'} {asked}"
        written = _claim_if_changed(asked, held)
        return CacheFinding(False, Reason.DOWNLOADING, message, apply=written, requeue_after_seconds=SOON_SECONDS)
    found = _download(asked, runtime, kept, now)
    current = {each.name for each in asked.tries[-1:]}
    stale = tuple(each for each in jobs if each["metadata"]["name"] not in current)
    written = _claim_if_changed(asked, kept)  # before the Job removes what is not kept
    return replace(found, apply=(*written, *found.apply), delete=stale)


def unwanted_claims(pool: InferencePool, observed: Observed) -> tuple[Manifest, ...]:
    """The cache of a pool that has none any more, once no kept template reads it. A retained one is not touched."""
    if pool.spec.cache is not None:
        return ()
    mounted = frozenset[str]().union(*(revision.claims for revision in stored_revisions(observed)))
    claims = observed.of_role(PERSISTENT_VOLUME_CLAIM.kind, ROLE_LABEL, CACHE_ROLE)
    return tuple(each for each in claims if each["metadata"]["name"] not in mounted)


@dataclass(frozen=True)
class _Asked:
    """What is wanted of a cache, and what there is."""

    pool: InferencePool
    cache: ModelCache
    observed: Observed
    files: HubFiles

    @property
    def claim(self) -> Manifest | None:
        return self.observed.cache_claim

    @property
    def is_shared(self) -> bool:
        """Whether several nodes can mount it."""
        return bool(_SHARED.intersection(self.cache.persistent_volume_claim.modes))

    @property
    def tries(self) -> list[Inspection]:
        jobs = (job for job in self.observed.downloads if job.name.startswith(self.job_prefix))
        return sorted(jobs, key=lambda job: job.attempt)

    @property
    def has_arrived(self) -> bool:
        """Its last words are what it fetched; an exit without them proves nothing."""
        ended = self.tries[-1].termination if self.tries else None
        return ended is not None and (ended.exit_code, ended.message) == (ExitCode.OK, self.files.snapshot.name)

    @property
    def job_prefix(self) -> str:
        """Named by what is fetched, onto which claim, by whom and where: what changes begins anew."""
        model, pod = self.pool.spec.model, self.pool.spec.pod
        token = model.token_secret_ref.model_dump_json() if model.token_secret_ref else ""
        uid = self.claim["metadata"]["uid"] if self.claim else ""
        device, said = self.pool.spec.accelerator.resource, pod.model_dump_json(exclude_defaults=True)
        inputs = f"{model.uri} {self.files.snapshot.commit} {token} {uid} {device} {said}"
        return f"{self.pool.metadata.name}-download-{sha256(inputs.encode()).hexdigest()[:8]}-"

    def __str__(self) -> str:
        return f"{self.files.snapshot.name} ({format_bytes(self.files.num_bytes)})"


def _download(asked: _Asked, runtime: Runtime, kept: frozenset[str], now: datetime) -> CacheFinding:
    tries = asked.tries
    last = tries[-1] if tries else None
    if last is not None and not last.is_finished:
        return _waiting(asked, last, tries[-2] if len(tries) > 1 else None, now)
    reason, message = (Reason.DOWNLOADING, f"the Job for {asked} is being created") if last is None else _failure(last)
    if last is not None and (seconds := seconds_until_retry(last, now)) > 0:
        return CacheFinding(False, reason, message, requeue_after_seconds=seconds)
    name = f"{asked.job_prefix}{last.attempt + 1 if last else 1}"
    job = download_job(asked.pool, name, asked.files, runtime, keep=kept, place=_place(asked))
    return CacheFinding(False, reason, message, apply=(job,))


def _place(asked: _Asked) -> Place:
    spec, observed = asked.pool.spec, asked.observed
    readers = any(cache_name(asked.pool) in revision.claims for revision in stored_revisions(observed))
    if readers and not asked.is_shared and any(pod.node and not pod.is_terminating for pod in observed.pods):
        return Place(is_beside_engines=True)
    return Place(() if spec.accelerator.is_cpu else tuple(candidates(asked.pool, observed.nodes or ())))


def _waiting(asked: _Asked, last: Inspection, before: Inspection | None, now: datetime) -> CacheFinding:
    """While a try runs, the fault of the one before stays known."""
    if refused := refusal_of_pod(asked.pool, last, now):
        return CacheFinding(False, Reason.PODS_REFUSED, refused)
    reason, message = (Reason.DOWNLOADING, f"Job {last.name} fetches {asked}") if before is None else _failure(before)
    return CacheFinding(False, reason, message + trouble_of_pod(asked.pool, last))


def _failure(last: Inspection) -> tuple[Reason, str]:
    reason, said = fault(last)
    return Reason.DOWNLOAD_FAILED if reason is Reason.INSPECTION_FAILED else reason, said


def _ready(asked: _Asked) -> tuple[Reason, str]:
    spec, name = asked.pool.spec, cache_name(asked.pool)
    modes = asked.cache.persistent_volume_claim.modes
    most = spec.bounds[1] if spec.scaling.mode is ScalingMode.AUTO else spec.replicas
    if most > 1 and not asked.is_shared:
        return Reason.CACHE_ON_ONE_NODE, (
            f"{name} holds {asked.files.snapshot.name}, but is {', '.join(modes)}: up to {most} replicas have to "
            "run on the node that has it; use ReadWriteMany, or no cache"
        )
    return Reason.MODEL_CACHED, f"{name} holds {asked.files.snapshot.name}"


def _claim_if_changed(asked: _Asked, holds: frozenset[str]) -> tuple[Manifest, ...]:
    """A retained claim is not among the pool's children, so it is compared here."""
    wanted = cache_claim(asked.pool, asked.cache, asked.files.num_bytes, holds, asked.claim)
    return () if is_satisfied(stamped(wanted), asked.claim) else (wanted,)


def _is_ours(claim: Manifest, pool: InferencePool) -> bool:
    labels = claim["metadata"].get("labels", {})
    return (labels.get(POOL_LABEL), labels.get(ROLE_LABEL)) == (pool.metadata.name, CACHE_ROLE)
