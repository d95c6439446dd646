"""How long new replicas take until they serve, phase by phase, and the 90th percentile of it. Pure.

Each pod is measured once, when it serves: until its engine's start by the API server's times, from there by the
engine's own clock, so that a pod that drained and came back is measured no differently. What is kept stands in status:
the newest pods of the newest template. planning.py scales ahead by it, status.py publishes it.
"""

from collections.abc import Iterable
from math import ceil

from tidegate_operator.api.status import ColdStartPhases, ColdStartSample, ColdStartStatus
from tidegate_operator.world.observed import Observed, Pod

MAX_MEASURED = 10


def measure(before: ColdStartStatus | None, observed: Observed) -> ColdStartStatus | None:
    """The same as before unless a pod serves that was not measured yet."""
    known = before.measured if before else ()
    names = {each.pod for each in known}
    found = [sample for pod in observed.pods if pod.name not in names and (sample := _sample(pod, observed))]
    newest = sorted((*known, *found), key=lambda each: (each.created, each.pod), reverse=True)
    kept = tuple(each for each in newest if each.template == newest[0].template)[:MAX_MEASURED]
    return before if kept == known or not kept else _status(kept)


def newly_measured(before: ColdStartStatus | None, after: ColdStartStatus | None) -> tuple[ColdStartSample, ...]:
    """Those that came in between, for a histogram."""
    known = {each.pod for each in before.measured} if before else set()
    return tuple(each for each in (after.measured if after else ()) if each.pod not in known)


def _status(kept: tuple[ColdStartSample, ...]) -> ColdStartStatus:
    phases = {name: _p90(getattr(each, name) for each in kept) for name in ColdStartPhases.model_fields}
    return ColdStartStatus(
        p90_seconds=_p90(each.seconds for each in kept), phases=ColdStartPhases(**phases), measured=kept
    )


def _sample(pod: Pod, observed: Observed) -> ColdStartSample | None:
    """None while something is not known; of a pod that was restarted the beginning is lost."""
    times = pod.timeline
    start = observed.loads[pod.name].start if pod.name in observed.loads else None
    if not pod.is_ready or start is None or pod.num_restarts or not pod.scheduled_at or not times.started_at:
        return None
    schedule = (pod.scheduled_at - pod.created_at).total_seconds()
    pulled = (times.started_at - pod.scheduled_at).total_seconds() - times.init_seconds
    total = (times.started_at - pod.created_at).total_seconds() + start.load_seconds + start.warm_up_seconds
    return ColdStartSample(
        pod=pod.name,
        template=pod.template,
        created=pod.created_at,
        seconds=_whole(total),
        schedule_seconds=_whole(schedule),
        image_seconds=_whole(pulled),
        download_seconds=_whole(times.init_seconds),
        load_seconds=_whole(start.load_seconds),
        warm_up_seconds=_whole(start.warm_up_seconds),
    )


def _whole(seconds: float) -> int:
    """Clocks of nodes differ, so a difference may come out below zero."""
    return max(0, round(seconds))


def _p90(values: Iterable[int]) -> int:
    ordered = sorted(values)
    return ordered[ceil(0.9 * len(ordered)) - 1]
