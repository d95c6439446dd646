"""How many replicas a pool wants: glue between what was observed and tidegate_core.scaling. Pure.

Auto: the scaling policy decides between the bounds. Manual: spec.replicas, as a person, `kubectl scale` or another
autoscaler set it. Suspended: none. The size decided last stands on the Deployment, written in one apply with its
replicas, so that neither a restart nor a failed status write loses a decision.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from itertools import takewhile

from tidegate_core.load import measure as measure_load
from tidegate_core.samples import History, Memory, Round, Sample
from tidegate_core.scaling import Decision, Limit, Policy, decide
from tidegate_core.squeeze import noticed, squeezed
from tidegate_operator.api.conditions import ConditionType
from tidegate_operator.api.reasons import Reason
from tidegate_operator.api.spec import ScalingMode
from tidegate_operator.api.status import ColdStartStatus, ScalerStatus
from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.decisions.silence import has_metrics, silence
from tidegate_operator.sizing.capacity import num_held
from tidegate_operator.world.cold_start import measure
from tidegate_operator.world.observed import DeploymentFacts, Observed, Pod
from tidegate_operator.world.quota import NO_QUOTA, Room

UNTIL_RESYNC_SECONDS = float("inf")
MIN_ROUND_SECONDS = 1.0  # events may reconcile a pool many times a second; the scaler needs no finer view
DEFAULT_COLD_START_SECONDS = 60.0
MAX_COLD_START_SECONDS = 600.0  # a large model from a slow volume


@dataclass(frozen=True)
class Size:
    """The wanted number of replicas, why, and what keeps it from being another."""

    num_desired: int
    num_before: int
    why: str
    inputs: tuple[tuple[str, str], ...] = ()
    limit: Reason = Reason.WITHIN_BOUNDS
    limit_message: str = ""
    has_metrics: bool | None = None  # None: nobody to ask, or nobody asks
    silence: str = ""  # which replicas do not report, where that holds the size
    history: History | None = None  # to be kept once the plan was carried out
    is_busy: bool = False  # load is there or replicas could go: look often
    calm_seconds: float = float("inf")  # since anything was seen to move; of a pool that does not scale it is not asked

    @property
    def is_change(self) -> bool:
        return self.num_desired != self.num_before


@dataclass(frozen=True)
class ScaleTiming:
    """How often engines are asked."""

    interval_seconds: float = 5.0
    idle_interval_seconds: float = 60.0  # in the long run; it begins with the other and doubles

    @property
    def stale_seconds(self) -> float:
        """An older report says nothing about the present."""
        return 3 * self.interval_seconds


def choose_size(
    pool: InferencePool,
    observed: Observed,
    deployment: DeploymentFacts | None,
    now: datetime,
    *,
    slots: int,
    timing: ScaleTiming,
    room: Room = NO_QUOTA,
) -> Size:
    """`slots` of one replica; `room` that quotas leave for more."""
    before = decided_before(pool, deployment)
    if pool.spec.suspend:
        return Size(0, before or 0, "spec.suspend is true", limit=Reason.SUSPENDED)
    if not before:  # new, or suspended until now
        start = pool.spec.starting_replicas
        return Size(start, start if before is None else 0, f"the pool starts with {start}", limit=_resting_limit(pool))
    if pool.spec.scaling.mode is ScalingMode.MANUAL:
        return _manual(pool, observed, before, now, timing)
    return _automatic(pool, observed, before, now, slots=slots, timing=timing, room=room)


def decided_before(pool: InferencePool, deployment: DeploymentFacts | None) -> int | None:
    """The size decided last, by the best witness that is left; None for a new pool."""
    if deployment is None:
        return pool.status.desired_replicas or None
    return deployment.num_replicas if deployment.num_desired is None else deployment.num_desired


def _manual(pool: InferencePool, observed: Observed, before: int, now: datetime, timing: ScaleTiming) -> Size:
    """Somebody else decides; whether memory is short inside replicas is watched all the same."""
    history = _seen(pool, observed, before, now)
    load = measure_load(history, now.timestamp(), stale_seconds=timing.stale_seconds)
    wanted = pool.spec.replicas
    return Size(
        wanted,
        before,
        f"spec.replicas is {wanted}",
        limit=Reason.SCALING_MANUAL,
        limit_message=f"spec.replicas decides: {wanted}",
        history=history.remember(noticed(history.memory, load, now.timestamp())),
    )


def _seen(pool: InferencePool, observed: Observed, before: int, now: datetime) -> History:
    """What was seen of the pool, this look included."""
    history = observed.history or History(_kept_memory(pool, before, now))
    history = replace(history, memory=replace(history.memory, desired=before))
    newest = history.rounds[-1].time if history.rounds else float("-inf")
    if not 0 <= now.timestamp() - newest < MIN_ROUND_SECONDS:  # a clock that was set back is no reason to be blind
        history = history.add(load_round(observed, now))
    return history


def _automatic(
    pool: InferencePool,
    observed: Observed,
    before: int,
    now: datetime,
    *,
    slots: int,
    timing: ScaleTiming,
    room: Room,
) -> Size:
    history = _seen(pool, observed, before, now)
    most = _most_replicas(pool, observed, before, room)
    rules = policy(
        pool, slots, timing, most=most, cold_start=cold_start_seconds(measure(pool.status.cold_start, observed))
    )
    decision = decide(history, rules, now.timestamp())
    low, _ = pool.spec.bounds
    newest_round = history.rounds[-1]
    latest = newest_round.samples.values()
    recent = history.since(now.timestamp() - timing.stale_seconds)
    is_heard = has_metrics(recent)
    limit, message = _limit(pool, observed, decision, most, room)
    return Size(
        num_desired=decision.desired,
        num_before=before,
        why=decision.reason,
        inputs=tuple(decision.inputs.items()),
        limit=limit,
        limit_message=message,
        has_metrics=is_heard,
        silence=silence(recent) if is_heard is False else "",
        history=history.remember(decision.memory),
        is_busy=any(sample.running or sample.waiting for sample in latest) or decision.desired > low,
        calm_seconds=_calm_seconds((*(observed.history.rounds if observed.history else ()), newest_round), now),
    )


def look_seconds(observed: Observed, size: Size, timing: ScaleTiming) -> float:
    """Until engines are asked again: soon under load, then as long as it has been calm, so each wait is twice the last.

    Without any pod on a node there is nobody to ask, and watches tell.
    """
    if not any(pod.node or pod.is_running for pod in observed.pods):
        return UNTIL_RESYNC_SECONDS
    if size.is_busy:
        return timing.interval_seconds
    return min(timing.idle_interval_seconds, max(timing.interval_seconds, size.calm_seconds))


def _calm_seconds(rounds: tuple[Round, ...], now: datetime) -> float:
    """Since when every replica has said the same: a counter that moves between two looks was a request."""
    same = takewhile(lambda each: each.samples == rounds[-1].samples, reversed(rounds))
    return max(0.0, now.timestamp() - min(each.time for each in same))


def cold_start_seconds(measured: ColdStartStatus | None) -> float:
    """How far ahead replicas are ordered: what new ones took, within reason; a guess where none was measured."""
    if measured is None:
        return DEFAULT_COLD_START_SECONDS
    return min(max(float(measured.p90_seconds), 1.0), MAX_COLD_START_SECONDS)


def _kept_memory(pool: InferencePool, before: int, now: datetime) -> Memory:
    """Of a restarted operator, from the pool's status."""
    kept = (pool.status.scaler or ScalerStatus()).memory(before)
    return squeezed(kept, now.timestamp()) if pool.status.condition(ConditionType.RESIZE_ADVISED) else kept


def _most_replicas(pool: InferencePool, observed: Observed, before: int, room: Room) -> int:
    """The pool's maximum, or what quotas allow; what was ordered already stays ordered."""
    _, high = pool.spec.bounds
    allowed = room.most_replicas(num_held(observed.pods))
    return high if allowed is None else min(high, max(before, allowed))


def policy(pool: InferencePool, slots: int, timing: ScaleTiming, *, most: int, cold_start: float) -> Policy:
    low, _ = pool.spec.bounds
    return Policy(
        min_replicas=min(low, most),
        max_replicas=most,
        slots=slots,
        ttft_seconds=pool.spec.objectives.ttft_milliseconds / 1000,
        hold_seconds=pool.spec.scaling.scale_down_hold_seconds,
        cold_start_seconds=cold_start,
        stale_seconds=timing.stale_seconds,
    )


def load_round(observed: Observed, now: datetime) -> Round:
    """All serving replicas at this moment."""
    serving = [pod for pod in observed.pods if is_serving(pod)]
    return Round(
        time=now.timestamp(),
        ready=frozenset(pod.name for pod in serving),
        samples={pod.name: Sample.of(observed.loads[pod.name]) for pod in serving if pod.name in observed.loads},
        num_unschedulable=sum(_is_unschedulable(pod) for pod in observed.pods),
        is_rolling_out=len({pod.template for pod in observed.pods if not pod.is_terminating}) > 1,
        failures={pod.name: observed.failures[pod.name] for pod in serving if pod.name in observed.failures},
    )


def is_serving(pod: Pod) -> bool:
    return pod.is_ready and pod.is_serving


def _limit(pool: InferencePool, observed: Observed, decision: Decision, most: int, room: Room) -> tuple[Reason, str]:
    if observed.is_scaled_by_others:
        return Reason.FOREIGN_SCALER, (
            f"kubectl scale or another autoscaler set spec.replicas to {pool.spec.replicas}, but scaling.mode Auto "
            "decides; set scaling.mode to Manual, or remove that scaler and write spec.replicas yourself"
        )
    low, high = pool.spec.bounds
    if most < high and (decision.limit is Limit.MAXIMUM or most < low):
        return Reason.QUOTA_EXCEEDED, f"more than {most} replicas are wanted: {room.why}"
    if decision.limit is Limit.MAXIMUM:  # no live figures: they would rewrite the status at every look
        return Reason.AT_MAXIMUM, f"more than {high} replicas are wanted; raise maxReplicas, or expect refusals"
    if decision.limit is Limit.UNSCHEDULABLE:
        return Reason.UNSCHEDULABLE, "more replicas are wanted, but no node has room for the last one"
    return Reason.WITHIN_BOUNDS, f"between {low} and {high} replicas"


def _resting_limit(pool: InferencePool) -> Reason:
    return Reason.SCALING_MANUAL if pool.spec.scaling.mode is ScalingMode.MANUAL else Reason.WITHIN_BOUNDS


def _is_unschedulable(pod: Pod) -> bool:
    return pod.trouble is not None and pod.trouble.reason is Reason.UNSCHEDULABLE
