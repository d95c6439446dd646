"""The state of a fleet in a dozen numbers, condensed from a History over short windows.

Called by scaling.py alone; nothing here decides. Missing replicas count like the average of those that answered.
"""

from dataclasses import dataclass

from tidegate_core.samples import Counters, History, Round

WINDOW_SECONDS = 30.0
RATE_WINDOW_SECONDS = 60.0
RELIEF_SECONDS = 30.0  # a replica that just became ready needs this long to show in the queues
MAX_MISSING_SHARE = 0.2
MAX_ETA_SECONDS = 600.0  # a hung engine must not outweigh all others


@dataclass(frozen=True)
class FleetLoad:
    """Means over WINDOW_SECONDS where nothing else is said."""

    num_ready: int
    num_reporting: int
    num_unschedulable: int
    is_rolling_out: bool
    is_settling: bool  # a further replica became ready within RELIEF_SECONDS
    running: float
    waiting: float
    eta_seconds: float  # predicted wait now, mean of replicas
    kv_share: float  # of all KV blocks, held by live requests now
    increase: Counters
    num_preempting: int  # replicas that preempted
    arrivals_per_second: float  # over RATE_WINDOW_SECONDS

    @property
    def has_metrics(self) -> bool:
        """Enough replicas answered to decide on."""
        return self.num_ready > 0 and self.num_ready - self.num_reporting <= MAX_MISSING_SHARE * self.num_ready


def measure(history: History, now: float, *, stale_seconds: float) -> FleetLoad:
    """The fleet as of `now`; rounds older than `stale_seconds` say nothing about the present."""
    latest = history.rounds[-1] if history.rounds and history.rounds[-1].time > now - stale_seconds else None
    if latest is None:
        latest = Round(now, frozenset(history.rounds[-1].ready if history.rounds else ()), {})
    recent = [each for each in history.since(now - WINDOW_SECONDS) if each.samples] or (
        [latest] if latest.samples else []
    )
    samples = latest.samples.values()
    total_blocks = sum(sample.kv_blocks_total for sample in samples)
    increases = _increases(history, now - WINDOW_SECONDS)
    return FleetLoad(
        num_ready=len(latest.ready),
        num_reporting=len(latest.samples),
        num_unschedulable=latest.num_unschedulable,
        is_rolling_out=latest.is_rolling_out,
        is_settling=any(0 < len(each.ready) < len(latest.ready) for each in history.since(now - RELIEF_SECONDS)),
        running=_mean([sum(s.running for s in each.samples.values()) * each.scale_up_factor for each in recent]),
        waiting=_mean([sum(s.waiting for s in each.samples.values()) * each.scale_up_factor for each in recent]),
        eta_seconds=_mean([min(sample.eta_seconds, MAX_ETA_SECONDS) for sample in samples]),
        kv_share=sum(sample.kv_blocks_used for sample in samples) / total_blocks if total_blocks else 0.0,
        increase=sum(increases.values(), Counters()),
        num_preempting=sum(1 for each in increases.values() if each.preemptions),
        arrivals_per_second=_arrival_rate(history, now - RATE_WINDOW_SECONDS) * latest.scale_up_factor,
    )


def _increases(history: History, since: float) -> dict[str, Counters]:
    """Increase of each replica after that moment."""
    sums: dict[str, Counters] = {}
    for step in history.steps_since(since):
        sums[step.replica] = sums.get(step.replica, Counters()) + step.increase
    return sums


def _arrival_rate(history: History, since: float) -> float:
    """Requests a second at the whole fleet, replicas that have left included."""
    steps = tuple(history.steps_since(since))
    if not steps:
        return 0.0
    seconds = max(step.end for step in steps) - min(step.start for step in steps)
    return sum(step.increase.arrivals for step in steps) / seconds


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
