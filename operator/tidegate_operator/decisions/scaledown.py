"""A smaller pool by a reversible drain. Pure; level-triggered on the pods' own labels, so a restart loses nothing.

    serving ──mark: label, cost, time──▶ draining ──nothing in flight, or timeout──▶ leaves: replicas - 1
       ▲                                    │
       └───────────── load is back ─────────┘

Pods that are not ready yet go first and at once: nobody is on them. Never during a rollout, when the Deployment's
controller replaces pods by its own order. Whatever label and engine disagree about is repaired in the next round: a
restarted engine in a draining pod is told to drain again.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from tidegate_core.telemetry import LoadReport
from tidegate_operator.world.observed import Pod

DRAINING_COST = -1000  # the ReplicaSet controller removes the lowest first
DRAINED_COST = -2000
POLL_SECONDS = 1.0  # while something drains


@dataclass(frozen=True)
class Mark:
    """A pod gets this label, cost and time; None for a time takes the mark away."""

    pod: Pod
    draining_since: datetime | None
    deletion_cost: int


@dataclass(frozen=True)
class ScaleDown:
    """`num_replicas` for the Deployment, and what happens to single pods before it is applied."""

    num_replicas: int
    marks: tuple[Mark, ...] = ()
    drain: tuple[Pod, ...] = ()  # POST /drain
    undrain: tuple[Pod, ...] = ()  # POST /undrain
    requeue_after_seconds: float | None = None

    @property
    def newly_draining(self) -> tuple[Pod, ...]:
        return tuple(mark.pod for mark in self.marks if mark.draining_since and mark.pod.draining_since is None)

    @property
    def spared(self) -> tuple[Pod, ...]:
        return tuple(mark.pod for mark in self.marks if mark.draining_since is None)


def plan_scale_down(
    *,
    num_replicas: int,
    num_desired: int,
    pods: tuple[Pod, ...],
    loads: Mapping[str, LoadReport],
    num_rolling: int | None,
    drain_timeout_seconds: float,
    now: datetime,
) -> ScaleDown:
    """From what the Deployment has now towards the size decided; `num_rolling` is its size during a rollout.

    What counts is the pods that live: one that was taken off `replicas` may still be there for a moment, and one that
    was never created needs no victim.
    """
    live = [pod for pod in pods if not pod.is_terminating]
    draining = [pod for pod in live if pod.draining_since is not None]
    if num_rolling is not None:
        seconds = POLL_SECONDS if draining else None
        return ScaleDown(num_rolling, drain=_to_drain(draining, loads), requeue_after_seconds=seconds)
    num_excess = max(0, len(live) - num_desired)
    by_load = _victims(draining, loads)
    staying, spared = by_load[:num_excess], by_load[num_excess:]
    serving = [pod for pod in live if pod not in draining]
    chosen = _victims(serving, loads)[: num_excess - len(staying)]
    leaving = [pod for pod in staying if _is_drained(pod, loads, drain_timeout_seconds, now)]
    leaving += [pod for pod in chosen if _is_unused(pod, loads)]
    marks = [Mark(pod, None, 0) for pod in spared]
    marks += [Mark(pod, now, DRAINED_COST if pod in leaving else DRAINING_COST) for pod in chosen]
    marks += [
        Mark(pod, pod.draining_since, DRAINED_COST)
        for pod in leaving
        if pod in staying and pod.deletion_cost != DRAINED_COST
    ]
    return ScaleDown(
        num_replicas=max(num_desired, min(num_replicas, len(live) - len(leaving))),
        marks=tuple(marks),
        drain=_to_drain([*chosen, *staying], loads),
        undrain=tuple(
            pod
            for pod in live
            if pod not in staying and pod not in chosen and (load := loads.get(pod.name)) and load.draining
        ),
        requeue_after_seconds=POLL_SECONDS if num_excess else None,
    )


def _victims(pods: list[Pod], loads: Mapping[str, LoadReport]) -> list[Pod]:
    """Pending first; then the least in flight, no answer counting as busy; of equals whose prefix cache helps least.

    That is its blocks, as far as prompts found theirs among them; and of those the youngest.
    """

    def cost(pod: Pod) -> tuple[float, float]:
        load = loads.get(pod.name)
        return (_in_flight(load), load.kv_blocks_cached * load.prefix_hit_share) if load else (float("inf"), 0.0)

    return sorted(pods, key=lambda pod: (pod.is_ready, *cost(pod), -pod.created_at.timestamp(), pod.name))


def _is_unused(pod: Pod, loads: Mapping[str, LoadReport]) -> bool:
    """Not ready, and nobody on it: it may go without a drain."""
    load = loads.get(pod.name)
    return not pod.is_ready and (load is None or _in_flight(load) == 0)


def _is_drained(pod: Pod, loads: Mapping[str, LoadReport], timeout_seconds: float, now: datetime) -> bool:
    """An engine's word counts only from when it drains: before that a request may still be on its way."""
    assert pod.draining_since is not None
    if (now - pod.draining_since).total_seconds() >= timeout_seconds or not pod.is_running:
        return True
    load = loads.get(pod.name)
    return load is not None and load.draining and _in_flight(load) == 0


def _to_drain(pods: list[Pod], loads: Mapping[str, LoadReport]) -> tuple[Pod, ...]:
    """Those whose engine answers but does not drain yet."""
    return tuple(pod for pod in pods if (load := loads.get(pod.name)) and not load.draining)


def _in_flight(load: LoadReport) -> int:
    return load.running + load.waiting
