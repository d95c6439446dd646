"""What a Job of ours says: why it failed, why its pod does not start, when the next try is due. Pure.

inspection.py and model_cache.py ask the same of theirs. A Job is one try; what it wrote before it ended stays.
"""

from datetime import datetime, timedelta
from hashlib import sha256

from tidegate_core.termination import ExitCode
from tidegate_operator.api.reasons import Reason
from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.world.observed import Inspection
from tidegate_operator.world.readers import HUB_REASONS

FIRST_RETRY_SECONDS = 10
LONGEST_RETRY_SECONDS = 300
LONGEST_ASKED_SECONDS = 3600  # by a hub; what asks for a year is broken
JITTER = 0.5  # of a wait for a hub
NO_POD_SECONDS = 10  # a Job gets its pod within a second, or the API server refuses it
_REASON_BY_EXIT = {
    ExitCode.MODEL_UNREACHABLE: Reason.MODEL_NOT_FOUND,
    ExitCode.MODEL_UNSUPPORTED: Reason.MODEL_UNSUPPORTED,
    ExitCode.DISK_FULL: Reason.CACHE_FULL,
}
_SAID_BY_PODS = (Reason.MODEL_NOT_FOUND, Reason.MODEL_CORRUPT, Reason.MODEL_UNSUPPORTED, *HUB_REASONS)


def fault(job: Inspection) -> tuple[Reason, str]:
    """Why it failed, in its pod's words."""
    ended = job.termination
    if ended is None:
        return Reason.INSPECTION_FAILED, f"Job {job.name} failed: {job.failure or 'its pod is gone'}"
    words = ended.last_words()
    message = words.message if words else ended.message[-500:] or f"no word, exit code {ended.exit_code}"
    said = next((reason for reason in _SAID_BY_PODS if words and words.reason == reason), None)
    if said is None and ended.exit_code in _REASON_BY_EXIT:
        said = _REASON_BY_EXIT[ExitCode(ended.exit_code)]
    return said or Reason.INSPECTION_FAILED, message


def refusal_of_pod(pool: InferencePool, job: Inspection, now: datetime) -> str:
    """Empty while a Job has its pod, or has only just been made."""
    if job.has_pod or (now - job.created_at).total_seconds() < NO_POD_SECONDS:
        return ""
    cause = f"kubectl describe job {job.name} -n {pool.metadata.namespace}"
    return f"Job {job.name} has got no pod since {NO_POD_SECONDS} s: `{cause}` says why"


def trouble_of_pod(pool: InferencePool, job: Inspection) -> str:
    """What keeps its pod from starting, as the end of a sentence.

    A pod waits for a missing Secret without a word in its status, and the operator may not look at Secrets.
    """
    if job.trouble:
        return f"; the pod of Job {job.name} does not start: {job.trouble.reason}: {job.trouble.message}"
    secret = pool.spec.model.token_secret_ref
    if secret is None or job.is_running:
        return ""
    return f"; its pod starts once there is a Secret {secret.name} with the entry {secret.key}"


def seconds_until_retry(last: Inspection, now: datetime) -> float:
    """Longer each time, as long as a hub asked for, and out of step with other pools where it is a hub's doing."""
    wait_seconds = float(min(FIRST_RETRY_SECONDS * 2 ** min(last.attempt - 1, 10), LONGEST_RETRY_SECONDS))
    ended = last.termination
    if ended is not None and ended.exit_code == ExitCode.HUB_UNAVAILABLE:
        words = ended.last_words()
        asked_seconds = (words.retry_after_seconds if words else 0) or 0
        wait_seconds = max(wait_seconds, min(asked_seconds, LONGEST_ASKED_SECONDS))
        wait_seconds *= 1 + JITTER * int(sha256(last.uid.encode()).hexdigest()[:4], 16) / 0xFFFF
    due = (last.finished_at or now) + timedelta(seconds=wait_seconds)
    return max(0.0, (due - now).total_seconds())
