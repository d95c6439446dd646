"""Scaling on a real API server: engines report load, the pool follows; what leaves is drained first."""

from fake_engines import FakeEngine, FakeEngines
from operator_process import OperatorUnderTest
from pools import pool_manifest
from waiting import eventually

AUTO = {"minReplicas": 1, "maxReplicas": 3, "scaling": {"mode": "Auto", "scaleDownHoldSeconds": 3}}
BUSY = {"running": 8, "waiting": 20, "eta_seconds": 40.0, "arrivals": 30}


def become_ready(operator: OperatorUnderTest, ready: str) -> None:
    def has_ready() -> bool:
        return bool(operator.pool().get("status", {}).get("ready") == ready)

    eventually(has_ready, what=f"ready {ready}", timeout_seconds=60)


def replicas(operator: OperatorUnderTest) -> int:
    return int(operator.get("deployment", "chat")["spec"]["replicas"])


def last_decision(operator: OperatorUnderTest) -> dict:
    """Written right after it was carried out."""
    return eventually(lambda: operator.pool()["status"].get("scalingHistory"))[0]


def live(operator: OperatorUnderTest, engines: FakeEngines) -> dict[str, FakeEngine]:
    names = {pod["metadata"]["name"] for pod in operator.get("pods", selector="tidegate.dev/role=engine")}
    return {name: engine for name, engine in engines.by_pod.items() if name in names}


def only(operator: OperatorUnderTest, engines: FakeEngines) -> FakeEngine:
    (engine,) = live(operator, engines).values()
    return engine


def test_a_queue_adds_replicas_and_an_idle_fleet_drains_before_it_shrinks(
    operator: OperatorUnderTest, engines: FakeEngines
) -> None:
    operator.apply(pool_manifest(**AUTO))
    become_ready(operator, "1/1")
    only(operator, engines).set_load(**BUSY)
    eventually(lambda: replicas(operator) > 1)
    decision = last_decision(operator)
    assert decision["from"] == 1
    assert "predicted wait" in decision["reason"]
    for engine in live(operator, engines).values():
        engine.set_load(running=1, waiting=0, eta_seconds=0.0)
    eventually(lambda: any(engine.report.draining for engine in live(operator, engines).values()), timeout_seconds=120)
    assert operator.get("pods", selector="tidegate.dev/serving=false"), "it is out of the Service's selector"
    size = replicas(operator)
    assert size > 1, "the Deployment keeps a replica that still has a request"
    for engine in live(operator, engines).values():
        engine.set_load(running=0)
    eventually(lambda: replicas(operator) == 1, timeout_seconds=60)
    eventually(lambda: len(operator.get("pods")) == 1)
    become_ready(operator, "1/1")
    assert all(engine.num_unauthorised == 0 for engine in engines.by_pod.values())
    assert operator.pool()["spec"]["replicas"] == 1
    operator.assert_quiescent()


def test_preemptions_add_a_replica(operator: OperatorUnderTest, engines: FakeEngines) -> None:
    operator.apply(pool_manifest(**AUTO))
    become_ready(operator, "1/1")
    engine = only(operator, engines)
    before = operator.num_reconciles()
    eventually(lambda: operator.num_reconciles() > before + 4)
    assert replicas(operator) == 1
    engine.set_load(preemptions=12, running=4)
    eventually(lambda: replicas(operator) == 2)
    assert "preemptions" in last_decision(operator)["reason"]


def test_load_that_comes_back_cancels_a_drain(operator: OperatorUnderTest, engines: FakeEngines) -> None:
    operator.apply(pool_manifest(**{**AUTO, "replicas": 2}))
    become_ready(operator, "2/2")
    for engine in live(operator, engines).values():
        engine.set_load(running=1)
    eventually(lambda: any(engine.report.draining for engine in live(operator, engines).values()), timeout_seconds=120)
    before = {pod["metadata"]["uid"] for pod in operator.engine_pods()}
    for engine in live(operator, engines).values():
        engine.set_load(**BUSY)
    eventually(lambda: not any(engine.report.draining for engine in live(operator, engines).values()))
    eventually(lambda: not operator.get("pods", selector="tidegate.dev/serving=false"))
    assert before <= {pod["metadata"]["uid"] for pod in operator.engine_pods()}
    for engine in live(operator, engines).values():
        engine.set_load(running=7, waiting=0, eta_seconds=0.0)


def test_kubectl_scale_rules_a_manual_pool_and_down_drains(operator: OperatorUnderTest, engines: FakeEngines) -> None:
    operator.apply(pool_manifest(scaling={"mode": "Manual"}))
    become_ready(operator, "1/1")
    kubectl = operator.access.kubectl
    kubectl("scale", "inferencepools.tidegate.dev", "chat", "--replicas=3", "-n", operator.namespace)
    become_ready(operator, "3/3")
    busy, *_ = live(operator, engines)
    engines.by_pod[busy].set_load(running=5)
    kubectl("scale", "inferencepools.tidegate.dev", "chat", "--replicas=1", "-n", operator.namespace)
    become_ready(operator, "1/1")
    eventually(lambda: list(live(operator, engines)) == [busy], what="the replica with requests is the one that stays")
    assert operator.condition("ScalingLimited")["reason"] == "ScalingManual"
    operator.assert_quiescent()


def test_a_foreign_scaler_of_an_auto_pool_is_named(operator: OperatorUnderTest) -> None:
    operator.apply(pool_manifest(**AUTO))
    become_ready(operator, "1/1")
    operator.access.kubectl("scale", "inferencepools.tidegate.dev", "chat", "--replicas=2", "-n", operator.namespace)
    eventually(lambda: operator.condition("ScalingLimited").get("reason") == "ForeignScaler")
    assert "scaling.mode to Manual" in operator.condition("ScalingLimited")["message"]
    assert replicas(operator) == 1
    operator.assert_quiescent()


def test_an_operator_restarted_during_a_drain_finishes_it(operator: OperatorUnderTest, engines: FakeEngines) -> None:
    operator.apply(pool_manifest(scaling={"mode": "Manual"}, replicas=2))
    become_ready(operator, "2/2")
    for engine in live(operator, engines).values():
        engine.set_load(running=1)
    operator.access.kubectl("scale", "inferencepools.tidegate.dev", "chat", "--replicas=1", "-n", operator.namespace)
    eventually(lambda: any(engine.report.draining for engine in live(operator, engines).values()))
    operator.stop()
    operator.start()
    assert replicas(operator) == 2
    for engine in live(operator, engines).values():
        engine.set_load(running=0)
    eventually(lambda: replicas(operator) == 1)
    become_ready(operator, "1/1")
    operator.assert_quiescent()


def test_missing_load_reports_hold_the_size_and_are_named(operator: OperatorUnderTest, engines: FakeEngines) -> None:
    operator.apply(pool_manifest(**{**AUTO, "replicas": 2}))
    become_ready(operator, "2/2")
    eventually(lambda: operator.is_condition("MetricsAvailable", "True"))
    for engine in live(operator, engines).values():
        engine.is_answering = False
    eventually(lambda: operator.condition("MetricsAvailable").get("reason") == "MetricsStale")
    first = min(live(operator, engines))
    named = f"{first}: GET /load: HTTP 500 (2 of 2 ready replicas do not report); the pool keeps its size; see kubectl"
    eventually(lambda: operator.condition("MetricsAvailable")["message"].startswith(named))
    before = operator.num_reconciles()
    eventually(lambda: operator.num_reconciles() > before + 10)
    assert replicas(operator) == 2
    operator.assert_quiescent()
    assert operator.log().count(named) == 1, "a line a change, not a line a scrape"
