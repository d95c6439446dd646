"""Metrics of the operator itself, named as controller-runtime names them where it has the same thing.

__main__ builds one, the parts call it, probes.py serves it. Figures of pools come from the operator that leads alone,
so that sums over all operators count each pool once.
"""

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from tidegate_operator.api.status import InferencePoolStatus
from tidegate_operator.control.workqueue import QueueWatcher
from tidegate_operator.report.pool_metrics import PoolMetrics
from tidegate_operator.resources import Key, Resource

BUCKETS_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class PoolFigures(NamedTuple):
    """The counts of one pool's status."""

    phase: str
    desired: int
    ready: int
    live: int
    updated: int

    @classmethod
    def of(cls, status: InferencePoolStatus) -> "PoolFigures":
        return cls(
            phase=status.phase or "Unknown",
            desired=status.desired_replicas or 0,
            ready=status.ready_replicas or 0,
            live=status.replicas or 0,
            updated=status.updated_replicas or 0,
        )


class Pools(Collector):
    """Every pool as of its last reconcile."""

    def __init__(self) -> None:
        self._figures: dict[Key, PoolFigures] = {}

    def set(self, key: Key, status: InferencePoolStatus) -> None:
        self._figures[key] = PoolFigures.of(status)

    def forget(self, key: Key) -> None:
        self._figures.pop(key, None)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        known = list(self._figures.items())
        phases = GaugeMetricFamily("tidegate_operator_pools", "Pools by phase", labels=["phase"])
        for phase, count in sorted(Tally(figures.phase for _, figures in known).items()):
            phases.add_metric([phase], count)
        yield phases
        yield _by_pool("desired", "Replicas that the scaler wants", known, lambda figures: figures.desired)
        yield _by_pool("ready", "Replicas that serve", known, lambda figures: figures.ready)
        yield _by_pool("live", "Replicas that exist and are not leaving", known, lambda figures: figures.live)
        yield _by_pool("updated", "Replicas of the current template", known, lambda figures: figures.updated)


def _by_pool(
    what: str, words: str, known: list[tuple[Key, PoolFigures]], figure: Callable[[PoolFigures], int]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"tidegate_pool_{what}_replicas", words, labels=["namespace", "pool"])
    for key, figures in known:
        family.add_metric(list(key), figure(figures))
    return family


class _Ages(Collector):
    """How long ago anything was heard of each kind: one that only grows is a watch that died."""

    def __init__(self, ages: Callable[[], Iterable[tuple[Resource, float]]]) -> None:
        self._ages = ages

    def collect(self) -> Iterator[GaugeMetricFamily]:
        words = "Seconds since an event or a list of the kind"
        family = GaugeMetricFamily("tidegate_operator_watch_age_seconds", words, labels=["kind"])
        for resource, seconds in self._ages():
            family.add_metric([resource.kind], seconds)
        yield family


class Metrics(QueueWatcher):
    """What the parts leave behind."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.pools = Pools()
        ProcessCollector(registry=self.registry)
        self.registry.register(self.pools)
        self.details = PoolMetrics(self.registry)
        self._total = self._counter("reconcile", "Reconciles by result", "result")
        self._errors = self._counter("reconcile_errors", "Reconciles that failed")
        self._seconds = self._histogram("reconcile_time_seconds", "Time of a reconcile")
        self._adds = self._counter("workqueue_adds", "Keys added to the work queue")
        self._retries = self._counter("workqueue_retries", "Keys that come back because they failed")
        self._waits = self._histogram("workqueue_queue_duration_seconds", "From due to taken by a worker")
        self._requests = self._counter("api_requests", "Requests to the API server", "verb", "code")
        self._request_seconds = self._histogram("api_request_duration_seconds", "Time of a request", "verb")
        for result in ("success", "error"):
            self._total.labels(result)

    def gauge(self, name: str, words: str, value: Callable[[], float]) -> None:
        """One that is asked when it is read."""
        Gauge(f"tidegate_operator_{name}", words, registry=self.registry).set_function(value)

    def watch_ages(self, ages: Callable[[], Iterable[tuple[Resource, float]]]) -> None:
        self.registry.register(_Ages(ages))

    def on_run(self, seconds: float, is_success: bool) -> None:
        self._total.labels("success" if is_success else "error").inc()
        self._seconds.observe(seconds)
        if not is_success:
            self._errors.inc()
            self._retries.inc()

    def on_add(self) -> None:
        self._adds.inc()

    def on_take(self, waited_seconds: float) -> None:
        self._waits.observe(waited_seconds)

    def on_request(self, verb: str, code: str, seconds: float) -> None:
        """From any thread."""
        self._requests.labels(verb, code or "none").inc()
        self._request_seconds.labels(verb).observe(seconds)

    def _counter(self, name: str, words: str, *labels: str) -> Counter:
        return Counter(f"tidegate_operator_{name}", words, labels, registry=self.registry)

    def _histogram(self, name: str, words: str, *labels: str) -> Histogram:
        buckets = BUCKETS_SECONDS
        return Histogram(f"tidegate_operator_{name}", words, labels, registry=self.registry, buckets=buckets)
