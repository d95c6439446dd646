"""Every query of the dashboard and every rule, evaluated by a real Prometheus over a running engine and operator."""

import json
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import start_http_server

from observability.dashboard import dashboard_json
from observability.panels import ROWS
from pools import NOW, pool
from prometheus import Prometheus, Target, prometheus
from serving import EngineUnderTest, engine_process
from tidegate_operator.api.conditions import Condition
from tidegate_operator.api.status import (
    ColdStartPhases,
    ColdStartSample,
    ColdStartStatus,
    CostStatus,
    InferencePoolStatus,
)
from tidegate_operator.control.metrics import Metrics
from waiting import eventually

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "charts/tidegate/files/dashboard.json"
ALERTS = ROOT / "charts/tidegate/files/alerts.yaml"
VARIABLES = {"$namespace": ".*", "$pool": "chat", "$__rate_interval": "1m"}
PHASES = {
    "schedule_seconds": 1, "image_seconds": 10, "download_seconds": 0, "load_seconds": 20, "warm_up_seconds": 3,
}  # fmt: skip


def expressions() -> list[str]:
    """As the committed dashboard has them."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", ())]


def pool_status() -> InferencePoolStatus:
    conditions = [
        Condition.model_validate({"type": each, "status": "True", "reason": "Because", "last_transition_time": NOW})
        for each in ("Ready", "Available", "Fits", "MetricsAvailable", "ScalingLimited")
    ]
    start = ColdStartSample(pod="a", template="t", created=NOW, seconds=34, **PHASES)
    return InferencePoolStatus(
        conditions=tuple(conditions), phase="Ready", replicas=1, ready_replicas=1, desired_replicas=1,
        cost=CostStatus(per_hour="2.5", basis="b"),
        cold_start=ColdStartStatus(p90_seconds=34, phases=ColdStartPhases(**PHASES), measured=(start,)),
    )  # fmt: skip


def ask(engine: EngineUnderTest) -> None:
    """More at once than one slot and a short queue take."""
    body = {"model": "m", "prompt": "x" * 100, "max_tokens": 3, "ignore_eos": True}
    with ThreadPoolExecutor(6) as clients:
        sent = [clients.submit(httpx.post, f"{engine.url}/v1/completions", json=body, timeout=30) for _ in range(6)]
    assert {each.result().status_code for each in sent} <= {200, 503}


@dataclass
class Run:
    """All that is scraped, and who scrapes it."""

    prometheus: Prometheus
    engine: EngineUnderTest
    operator: Metrics

    def go_on(self) -> None:
        ask(self.engine)
        self.operator.on_run(0.01, is_success=True)

    def result(self, expr: str) -> list[dict[str, Any]]:
        for name, value in VARIABLES.items():
            expr = expr.replace(name, value)
        return [each for each in self.prometheus.query(expr) if not math.isnan(float(each["value"][1]))]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    operator, folder = Metrics(), tmp_path_factory.mktemp("prometheus")
    operator.gauge("leader", "1 while this operator writes", lambda: 1)
    operator.pools.set(("team", "chat"), pool_status())
    operator.details.set(pool(), pool_status())
    server, thread = start_http_server(0, "127.0.0.1", registry=operator.registry)
    sim = ("--runner", "sim", "--slots", "1", "--max-queue", "1", "--context", "256", "--served-name", "m")
    with engine_process("/no/model", *sim, "--sim-preemptions-per-minute", "600") as engine:
        admin = engine.admin_url.removeprefix("http://")
        targets = (
            Target("engines", admin, {"namespace": "team", "pool": "chat", "pod": "chat-0"}),
            Target("operator", f"127.0.0.1:{server.server_port}", {}),
        )
        with prometheus(folder, targets, ALERTS) as scraper:
            eventually(lambda: len(scraper.query("up == 1")) == 2, timeout_seconds=30, what="both are scraped")
            yield Run(scraper, engine, operator)
    server.shutdown()
    server.server_close()
    thread.join(10)


def test_every_query_of_the_dashboard_has_an_answer_over_a_real_run(run: Run) -> None:
    assert len(expressions()) == sum(len(panel.queries) for _, panels in ROWS for panel in panels)

    def unanswered() -> list[str]:
        run.go_on()
        return [expr for expr in expressions() if not run.result(expr)]

    left = expressions()

    def is_answered() -> bool:
        left[:] = unanswered()
        return not left

    try:
        eventually(is_answered, timeout_seconds=60, what="every query has an answer")
    except AssertionError as error:
        raise AssertionError(f"no answer to {left}") from error


def test_every_rule_is_evaluated_over_a_real_run_and_a_good_pool_is_on_the_way_to_none(run: Run) -> None:
    """But for those about load: this run asks for more than its one slot takes."""
    of_load = {"TidegateRequestsRefused", "TidegatePreemptionsPersist", "TidegateWaitAboveObjective"}

    def is_settled() -> bool:
        rules = run.prometheus.rules()
        active = {rule["name"] for rule in rules if rule["state"] != "inactive"}
        return all(rule["lastEvaluation"] > "2000" for rule in rules) and active <= of_load

    eventually(is_settled, timeout_seconds=30, what="every rule was evaluated and none about the pool is pending")
    assert {(rule["health"], rule.get("lastError", "")) for rule in run.prometheus.rules()} == {("ok", "")}
    stalled = {"type": "Stalled", "status": "True", "reason": "Because", "last_transition_time": NOW}
    ill = pool_status().model_copy(update={"conditions": (Condition.model_validate(stalled),)})
    run.operator.details.set(pool(), ill)
    eventually(
        lambda: any(rule["name"] == "TidegatePoolStalled" and rule["state"] == "pending"
                    for rule in run.prometheus.rules()), what="a pool that stalls is",
    )  # fmt: skip
    run.operator.details.set(pool(), pool_status())


def test_every_metric_that_rules_go_by_is_one_that_somebody_exports(run: Run) -> None:
    """An alert over a name that nobody exports would be evaluated without fault, and never fire."""
    names = {series["metric"]["__name__"] for series in run.prometheus.query('{__name__=~"tidegate_.+"}')}
    said = ALERTS.read_text() + " ".join(expressions())
    used = {word for word in _words(said) if word.startswith("tidegate_")}
    assert used - names == set()


def _words(text: str) -> set[str]:
    return set("".join(letter if letter.isalnum() or letter == "_" else " " for letter in text).split())


def test_the_committed_dashboard_is_what_its_panels_draw() -> None:
    assert DASHBOARD.read_text() == dashboard_json(), "stale: run `make generate` and commit the result"
