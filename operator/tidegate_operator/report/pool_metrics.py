"""What a pool's status says, as metrics: conditions, cost, cold starts, the objective. metrics.py registers it.

Alerts and dashboard of the chart go by these names; docs/observability.md lists them. A condition is one series a type
(1: True, 0: not), so that a reason that changes does not start an alert anew; the reason is in tidegate_pool_info.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from sys import intern

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client import Metric as Family
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from tidegate_operator.api.status import ColdStartPhases, ColdStartStatus, InferencePoolStatus
from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.resources import Key
from tidegate_operator.world.cold_start import newly_measured

LABELS = ("namespace", "pool")
SECONDS_AN_HOUR = 3600.0
BUCKETS_SECONDS = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600)
PHASES = tuple((name.removesuffix("_seconds"), name) for name in ColdStartPhases.model_fields)


@dataclass(frozen=True)
class _Figures:
    """What is read of one pool; its status as a model would take ten times as much memory."""

    phase: str
    conditions: tuple[tuple[str, bool], ...]  # type, whether it is True
    cold_start: tuple[tuple[str, int], ...]  # phase, seconds; empty: none was measured
    ttft_seconds: float
    is_priced: bool
    per_hour: float
    spent: float  # until `at`, since this operator runs
    at: float

    @classmethod
    def of(cls, pool: InferencePool, status: InferencePoolStatus, spent: float, at: float) -> "_Figures":
        return cls(
            phase=status.phase or "",
            conditions=tuple((intern(each.type), each.status == "True") for each in status.conditions),
            cold_start=_cold_start(status.cold_start) if status.cold_start else (),
            ttft_seconds=pool.spec.objectives.ttft_milliseconds / 1000,
            is_priced=status.cost is not None,
            per_hour=float(status.cost.per_hour) if status.cost else 0.0,
            spent=spent,
            at=at,
        )

    def spent_by(self, now: float) -> float:
        return self.spent + self.per_hour * max(0.0, now - self.at) / SECONDS_AN_HOUR


class PoolMetrics(Collector):
    """Every pool as of its last reconcile; cost runs on by the clock in between."""

    def __init__(self, registry: CollectorRegistry, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pools: dict[Key, _Figures] = {}
        self._starts = Histogram(
            "tidegate_cold_start_seconds", "From a pod's creation until it served, and each phase of it",
            ["phase"], registry=registry, buckets=BUCKETS_SECONDS,
        )  # fmt: skip
        registry.register(self)

    def set(self, pool: InferencePool, status: InferencePoolStatus) -> None:
        """`pool` as it was read, `status` as it is now."""
        key, now = (pool.metadata.namespace, pool.metadata.name), self._clock()
        known = self._pools.get(key)
        spent = known.spent_by(now) if known else 0.0
        self._pools[key] = _Figures.of(pool, status, spent, now)
        for start in newly_measured(pool.status.cold_start, status.cold_start):
            self._starts.labels("all").observe(start.seconds)
            for phase, name in PHASES:
                self._starts.labels(phase).observe(getattr(start, name))

    def forget(self, key: Key) -> None:
        self._pools.pop(key, None)

    def collect(self) -> Iterator[Family]:
        known = sorted(self._pools.items())
        words = "1 for every pool, with the word of its Ready condition"
        yield _gauge("info", words, (((*key, each.phase), 1) for key, each in known), "phase")
        words = "Conditions of a pool: 1 where it is True, 0 where not; one that is not there has no series"
        yield _gauge("condition", words, _conditions(known), "type")
        words = "Wanted time to first token"
        yield _gauge("ttft_objective_seconds", words, ((key, each.ttft_seconds) for key, each in known))
        words = "90th percentile of the last cold starts, and of each phase"
        yield _gauge("cold_start_p90_seconds", words, _cold_starts(known), "phase")
        priced = [(key, each) for key, each in known if each.is_priced or each.spent]
        words = "Price of an hour of the replicas there are, by the operator's price list"
        yield _gauge("cost_per_hour", words, ((key, each.per_hour) for key, each in priced))
        now = self._clock()
        spent = CounterMetricFamily("tidegate_pool_cost", "Cost since this operator runs", labels=LABELS)
        for key, each in priced:
            spent.add_metric(list(key), each.spent_by(now))
        yield spent


def _gauge(name: str, words: str, values: Iterable[tuple[tuple[str, ...], float]], *labels: str) -> Family:
    family = GaugeMetricFamily(f"tidegate_pool_{name}", words, labels=(*LABELS, *labels))
    for key, value in values:
        family.add_metric(list(key), value)
    return family


def _conditions(known: list[tuple[Key, _Figures]]) -> Iterator[tuple[tuple[str, ...], float]]:
    for key, each in known:
        for type_, is_true in each.conditions:
            yield (*key, type_), float(is_true)


def _cold_starts(known: list[tuple[Key, _Figures]]) -> Iterator[tuple[tuple[str, ...], float]]:
    for key, each in known:
        for phase, seconds in each.cold_start:
            yield (*key, phase), seconds


def _cold_start(start: ColdStartStatus) -> tuple[tuple[str, int], ...]:
    return ("all", start.p90_seconds), *((phase, getattr(start.phases, name)) for phase, name in PHASES)
