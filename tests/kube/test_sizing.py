"""Sizing on a real API server: what engines measured stays with the pool and enters its next template alone."""

from fake_engines import FakeEngines
from operator_process import OperatorUnderTest
from pools import pool_manifest
from waiting import eventually


def test_what_engines_measured_is_kept_rolls_nothing_and_is_counted_into_the_next_template(
    operator: OperatorUnderTest, engines: FakeEngines
) -> None:
    operator.apply(pool_manifest())
    eventually(lambda: operator.is_condition("Ready", "True"), timeout_seconds=60)
    planned = operator.pool()["status"]["sizing"]
    (engine,) = engines.by_pod.values()
    loaded_bytes = (planned["runtimeBytes"] + planned["weightBytes"]) * 110 // 100
    engine.set_load(sizing=engine.report.sizing.model_copy(update={"loaded_bytes": loaded_bytes}))
    (learned,) = eventually(lambda: operator.pool()["status"].get("learnedSizing"), timeout_seconds=60)
    assert learned["loadedPercent"] == 110
    assert operator.pool()["status"]["sizing"]["measuredLoadedBytes"] == loaded_bytes
    operator.assert_quiescent()

    operator.apply(pool_manifest(context={"max": 2048, "min": 1024}))
    eventually(lambda: operator.pool()["status"]["sizing"]["basis"]["loadedPercent"] == 110, timeout_seconds=60)
    assert operator.pool()["status"]["sizing"]["kvBlocks"] < planned["kvBlocks"]
