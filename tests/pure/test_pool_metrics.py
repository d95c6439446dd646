"""A pool's status as metrics: what alerts and dashboard go by."""

from typing import Any

from prometheus_client import CollectorRegistry

from pools import NOW, pool
from tidegate_operator.api.conditions import Condition
from tidegate_operator.api.status import (
    ColdStartPhases,
    ColdStartSample,
    ColdStartStatus,
    CostStatus,
    InferencePoolStatus,
)
from tidegate_operator.report.pool_metrics import PoolMetrics

KEY = {"namespace": "team", "pool": "chat"}
PHASES = {
    "schedule_seconds": 1, "image_seconds": 10, "download_seconds": 0, "load_seconds": 20, "warm_up_seconds": 3,
}  # fmt: skip


class Watched:
    """Metrics on a clock of the test's own."""

    def __init__(self) -> None:
        self.now = 0.0
        self.registry = CollectorRegistry()
        self.metrics = PoolMetrics(self.registry, lambda: self.now)

    def set(self, before: InferencePoolStatus | None = None, **facts: Any) -> InferencePoolStatus:
        new = InferencePoolStatus(**facts)
        self.metrics.set(pool().model_copy(update={"status": before or InferencePoolStatus()}), new)
        return new

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, {**KEY, **labels})


def condition(type_: str, status: str, reason: str = "Because") -> Condition:
    return Condition.model_validate({"type": type_, "status": status, "reason": reason, "last_transition_time": NOW})


def test_conditions_are_one_series_a_type_and_the_reason_stands_apart() -> None:
    watched = Watched()
    watched.set(phase="Unschedulable", conditions=(condition("Ready", "False"), condition("Fits", "Unknown")))
    assert watched.value("tidegate_pool_condition", type="Ready") == 0
    assert watched.value("tidegate_pool_condition", type="Fits") == 0
    assert watched.value("tidegate_pool_condition", type="Stalled") is None
    assert watched.value("tidegate_pool_info", phase="Unschedulable") == 1
    assert watched.value("tidegate_pool_ttft_objective_seconds") == 2.0
    watched.set(phase="Ready", conditions=(condition("Ready", "True"),))
    assert watched.value("tidegate_pool_condition", type="Ready") == 1
    assert watched.value("tidegate_pool_info", phase="Unschedulable") is None


def test_cost_runs_on_between_reconciles_at_the_price_of_then() -> None:
    watched = Watched()
    watched.set(cost=CostStatus(per_hour="3.6", basis="b"))
    watched.now = 1000
    assert watched.value("tidegate_pool_cost_total") == 1.0
    watched.set(cost=CostStatus(per_hour="7.2", basis="b"))
    watched.now = 2000
    assert watched.value("tidegate_pool_cost_total") == 3.0
    assert watched.value("tidegate_pool_cost_per_hour") == 7.2
    watched.set()
    watched.now = 9000
    assert watched.value("tidegate_pool_cost_total") == 3.0, "nothing runs any more"
    assert watched.value("tidegate_pool_cost_per_hour") == 0.0


def test_a_pool_without_prices_has_no_cost_and_one_that_is_gone_has_nothing() -> None:
    watched = Watched()
    watched.set(phase="Ready")
    assert watched.value("tidegate_pool_cost_total") is None
    watched.metrics.forget(("team", "chat"))
    assert watched.value("tidegate_pool_info", phase="Ready") is None


def test_each_cold_start_is_observed_once_whole_and_by_phase() -> None:
    start = ColdStartSample(pod="a", template="t", created=NOW, seconds=34, **PHASES)
    measured = ColdStartStatus(p90_seconds=34, phases=ColdStartPhases(**PHASES), measured=(start,))
    watched = Watched()
    after = watched.set(cold_start=measured)
    watched.set(after, cold_start=measured)
    count = watched.registry.get_sample_value("tidegate_cold_start_seconds_count", {"phase": "all"})
    assert count == 1
    assert watched.registry.get_sample_value("tidegate_cold_start_seconds_sum", {"phase": "load"}) == 20
    assert watched.value("tidegate_pool_cold_start_p90_seconds", phase="all") == 34
    assert watched.value("tidegate_pool_cold_start_p90_seconds", phase="warm_up") == 3
