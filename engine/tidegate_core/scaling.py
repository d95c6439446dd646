"""How many replicas a pool should have: a pure function of what was seen, the policy and the time.

Called by the operator's plan, and by whatever rehearses it on a virtual clock. Up at once, down late:

    up      more are needed than wanted so far, or a panic (predicted wait, preemption burst, refusals): a quarter more
    hold    data is missing, a rollout runs, no node has room, or a replica just came and its effect is not seen yet
    down    fewer would have done for the whole hold window: in slots, in KV, and well below the rate of arrivals at
            which so few were too few last time (latency grows faster than load, so slots alone would oscillate)

`desired` counts replicas that were ordered and are not ready yet, so one backlog orders them once.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from math import ceil

from tidegate_core.load import FleetLoad, measure
from tidegate_core.samples import History, Memory
from tidegate_core.squeeze import noticed

BUSY_SHARE = 0.85  # of the slots that is planned for
SHARE_AFTER_REMOVAL = 0.7  # of slots, KV and strain that fewer replicas may come to; the gap to BUSY_SHARE damps noise
PANIC_SECONDS = 60.0  # after its last cause, or the hold where that is shorter
PANIC_GROWTH = 1.25
MIN_BACKLOG_SECONDS = 30.0  # a queue should be worked off within this, or half a cold start
MIN_PREEMPTIONS = 3
PREEMPTIONS_PER_ARRIVAL = 0.05
TICK_SECONDS = 5.0  # least time between two orders
REMOVAL_SECONDS = 60.0  # least time between two removals, where the hold is not shorter
STRAIN_DOUBLING_SECONDS = 4 * 3600.0  # requests change: an old strain forbids a removal less and less


class Limit(StrEnum):
    """What keeps the scaler from the number it wants."""

    MAXIMUM = "maximum"
    UNSCHEDULABLE = "unschedulable"


@dataclass(frozen=True)
class Policy:
    """What one pool asks of its scaler."""

    min_replicas: int
    max_replicas: int
    slots: int  # most requests running at once on a replica
    ttft_seconds: float
    hold_seconds: float
    cold_start_seconds: float = 60.0  # from order to ready
    stale_seconds: float = 15.0  # an older round says nothing about the present


@dataclass(frozen=True)
class Decision:
    """The number, why in one line, and what to remember."""

    desired: int
    reason: str
    inputs: dict[str, str]  # the numbers that decided, for reading
    limit: Limit | None
    has_metrics: bool
    memory: Memory


@dataclass(frozen=True)
class _Step:
    desired: int
    why: str
    limit: Limit | None = None
    is_for_load: bool = False


def decide(history: History, policy: Policy, now: float) -> Decision:
    """The wanted number of replicas. Same arguments, same decision; the caller keeps `memory` once it acted."""
    load = measure(history, now, stale_seconds=policy.stale_seconds)
    before = history.memory
    alarm = _alarm(load, policy)
    panic_until = now + min(PANIC_SECONDS, policy.hold_seconds) if alarm else before.panic_until
    memory = replace(noticed(before, load, now), decided_at=now, panic_until=panic_until)
    needed = _needed_to_shrink(load, memory, policy, before, now)
    memory = replace(memory, peaks=_with_peak(before.peaks, now, needed, policy.hold_seconds))
    step = _step(load, memory, policy, alarm=alarm, now=now)
    memory = _after(step, memory, load, now)
    arrow = f"{before.desired} -> {step.desired}" if step.desired != before.desired else str(step.desired)
    return Decision(step.desired, f"{arrow}: {step.why}", _inputs(load), step.limit, load.has_metrics, memory)


def _step(load: FleetLoad, memory: Memory, policy: Policy, *, alarm: str, now: float) -> _Step:
    """The ladder: bounds, up, down, stay."""
    current = memory.desired
    if current < policy.min_replicas:
        return _Step(policy.min_replicas, f"the pool's minimum is {policy.min_replicas}")
    if current > policy.max_replicas:
        return _Step(policy.max_replicas, f"the pool's maximum is {policy.max_replicas}")
    if not load.num_reporting:
        return _Step(current, f"held, no load report from {load.num_ready} ready replicas")
    wanted = _wanted(load, policy, alarm)
    return _up(load, memory, policy, wanted, now) if wanted.desired > current else _down(load, memory, policy, now)


def _up(load: FleetLoad, memory: Memory, policy: Policy, want: _Step, now: float) -> _Step:
    current, wanted, why = memory.desired, want.desired, want.why
    if load.num_unschedulable:
        why = f"held, no node has room for {load.num_unschedulable} replicas; otherwise {wanted}: {why}"
        return _Step(current, why, Limit.UNSCHEDULABLE)
    limit = Limit.MAXIMUM if wanted > policy.max_replicas else None
    allowed = min(wanted, policy.max_replicas, max(2 * current, current + 4))
    if limit and allowed == current:
        return _Step(current, f"held at the pool's maximum, otherwise {wanted}: {why}", limit)
    if memory.last_scale_up is not None and 0 <= now - memory.last_scale_up < TICK_SECONDS:
        return _Step(current, f"held, the last order is {now - memory.last_scale_up:.0f} s old", limit)
    return _Step(allowed, why, limit, is_for_load=True)


def _down(load: FleetLoad, memory: Memory, policy: Policy, now: float) -> _Step:
    current = memory.desired
    enough = max(policy.min_replicas, *(needed for _, needed in memory.peaks))
    pause_seconds = min(REMOVAL_SECONDS, policy.hold_seconds)
    removed_lately = memory.last_scale_down is not None and 0 <= now - memory.last_scale_down < pause_seconds
    if enough >= current or removed_lately:
        return _Step(current, f"{load.running:.1f} running and {load.waiting:.1f} waiting on {load.num_ready} ready")
    target = max(enough, current - max(1, current // 5))
    why = (
        f"{target} would have done for {policy.hold_seconds:.0f} s: {load.running:.1f} running of "
        f"{target} x {policy.slots} slots, {load.waiting:.1f} waiting, KV {load.kv_share:.0%} of {load.num_ready} pools"
    )
    return _Step(target, why)


def _alarm(load: FleetLoad, policy: Policy) -> str:
    """Why there is a panic; empty without one."""
    burst = max(MIN_PREEMPTIONS, PREEMPTIONS_PER_ARRIVAL * load.increase.arrivals)
    if load.increase.rejects:
        return f"{load.increase.rejects} requests refused in 30 s"
    if load.eta_seconds > policy.ttft_seconds / 2:
        return f"predicted wait {load.eta_seconds:.1f} s is over half of {policy.ttft_seconds:g} s (TTFT objective)"
    if load.increase.preemptions >= burst and load.num_preempting >= min(2, ceil(load.num_ready / 2)):
        return f"{load.increase.preemptions} preemptions in 30 s on {load.num_preempting} replicas"
    return ""


def _wanted(load: FleetLoad, policy: Policy, alarm: str) -> _Step:
    """Replicas for the load of now, and why; pending ones are part of what it is compared with."""
    ready = load.num_ready
    has_queue = load.waiting >= ready and not load.is_settling  # a request waits everywhere: slots do not limit
    slots = min(policy.slots, max(1.0, load.running / ready)) if has_queue else policy.slots
    backlog_seconds = max(MIN_BACKLOG_SECONDS, policy.cold_start_seconds / 2)
    backlog = 0.0 if load.is_settling else ready * load.eta_seconds / backlog_seconds
    wanted = _ceil(load.running / (slots * BUSY_SHARE) + backlog)
    why = f"{load.running:.1f} running and {load.waiting:.1f} waiting on {ready} x {policy.slots} slots"
    if alarm and not load.is_settling:
        return _Step(max(wanted, ready + 1, _ceil(ready * PANIC_GROWTH)), f"{alarm}; {why}")
    return _Step(wanted, why)


def _needed_to_shrink(load: FleetLoad, memory: Memory, policy: Policy, before: Memory, now: float) -> int:
    """The fewest replicas that would do now, or all there are while anything is unclear."""
    gap = not before.peaks or before.decided_at is None or now - before.decided_at > policy.stale_seconds
    panics = memory.panic_until is not None and now < memory.panic_until
    if gap or panics or load.is_rolling_out or not load.has_metrics or load.waiting > load.num_ready:
        return memory.desired
    by_slots = load.running / policy.slots
    by_kv = load.num_ready * load.kv_share
    strain = _strain(memory, now)
    by_rate = load.arrivals_per_second / strain if strain else 0.0
    by_queue = int(load.waiting) + 1  # one replica for each request of the queue would be "a queue everywhere" again
    return max(_ceil(max(by_slots, by_kv, by_rate) / SHARE_AFTER_REMOVAL), min(by_queue, memory.desired))


def _with_peak(
    peaks: tuple[tuple[float, int], ...], now: float, needed: int, hold_seconds: float
) -> tuple[tuple[float, int], ...]:
    """The maxima of the hold window: an older entry stays while it is larger than every later one."""
    return (*((time, count) for time, count in peaks if time > now - hold_seconds and count > needed), (now, needed))


def _after(step: _Step, memory: Memory, load: FleetLoad, now: float) -> Memory:
    """The memory of a step that is carried out."""
    if step.desired < memory.desired:
        return replace(memory, desired=step.desired, last_scale_down=now)
    if step.desired == memory.desired:
        return memory
    is_at_rest = memory.desired <= load.num_ready and not load.is_settling and load.arrivals_per_second > 0
    if step.is_for_load and is_at_rest:
        seen = load.arrivals_per_second / load.num_ready
        memory = replace(memory, strain_per_second=min(seen, _strain(memory, now) or seen), strain_time=now)
    return replace(memory, desired=step.desired, last_scale_up=now)


def _strain(memory: Memory, now: float) -> float | None:
    """Requests a second that were too many for one replica, taken for higher the longer ago it was."""
    if memory.strain_per_second is None or memory.strain_time is None:
        return None
    return memory.strain_per_second * 2 ** min(30.0, (now - memory.strain_time) / STRAIN_DOUBLING_SECONDS)


def _ceil(value: float) -> int:
    """At least one; a rounding error is no replica."""
    return max(1, ceil(value - 1e-9))


def _inputs(load: FleetLoad) -> dict[str, str]:
    return {
        "readyReplicas": str(load.num_ready),
        "reportingReplicas": str(load.num_reporting),
        "running": f"{load.running:.1f}",
        "waiting": f"{load.waiting:.1f}",
        "predictedWaitSeconds": f"{load.eta_seconds:.1f}",
        "kvShare": f"{load.kv_share:.2f}",
        "arrivalsPerSecond": f"{load.arrivals_per_second:.2f}",
        "preemptions30s": str(load.increase.preemptions),
        "rejects30s": str(load.increase.rejects),
    }
