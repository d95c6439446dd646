"""Changes reach engines while requests go on: with a spare GPU, without one, and when the change cannot work."""

from pathlib import Path

import pytest

from e2e.cluster.cluster import Cluster
from e2e.cluster.fixtures import NUM_GPUS
from e2e.cluster.images import ImageBuilder
from e2e.cluster.pods import RestrictedPod
from e2e.installation.burst import Burst
from e2e.installation.operator import Installation
from e2e.installation.polling import wait_for
from e2e.installation.pool import Pool
from e2e.installation.sim_pool import provide_sim_model, sim_pool

NUM_REPLICAS = 2
TWO = {"scaling": {"mode": "Manual"}, "replicas": NUM_REPLICAS, "drain": {"timeoutSeconds": 30}}
ANSWER_TOKENS = 50  # 1 s and more
SMALLER = {"context": {"max": 4096, "min": 2048}}
NO_SUCH_IMAGE = {"engine": {"image": "localhost/no-such-engine:1"}, "rollout": {"progressDeadlineSeconds": 20}}


@pytest.fixture
def pool(cluster: Cluster, sim_engines: Installation, pools_namespace: str, tmp_path: Path) -> Pool:
    """Two replicas that serve."""
    provide_sim_model(cluster, pools_namespace, tmp_path)
    pool = Pool.apply(cluster, pools_namespace, sim_pool("chat", **TWO))
    pool.wait_for_ready_replicas(NUM_REPLICAS)
    return pool


def callers(pool: Pool) -> Burst:
    """Short answers, one after the other, until finish()."""
    burst = Burst(pool.url(), "chat", num_clients=2, max_tokens=ANSWER_TOKENS)
    burst.start()
    return burst


def uids(pool: Pool) -> set[str]:
    return {engine.uid for engine in pool.engines() if not engine.is_terminating}


def wait_for_rollout(pool: Pool, before: set[str]) -> int:
    """Until every replica is another one and serves, and the GPUs of those before are free: their pods are gone.

    Returns the fewest that served meanwhile.
    """
    fewest = [NUM_REPLICAS]

    def is_done() -> bool:
        status = pool.status()
        fewest.append(status["readyReplicas"])
        is_ready = pool.condition("Ready").get("status") == "True" and status["readyReplicas"] == NUM_REPLICAS
        return is_ready and before.isdisjoint(engine.uid for engine in pool.engines())

    wait_for("every replica is another one", is_done, timeout_seconds=240)
    return min(fewest)


def assert_all_answered(burst: Burst) -> None:
    result = burst.finish()
    assert (result.num_failed, result.num_refused) == (0, 0), result.fault
    assert result.num_completed > 0


def test_with_a_spare_gpu_a_change_surges_and_one_that_cannot_work_is_taken_back(
    sim_engines: Installation, pools_namespace: str, pool: Pool
) -> None:
    before, burst = uids(pool), callers(pool)
    pool.patch(**SMALLER)
    assert wait_for_rollout(pool, before) == NUM_REPLICAS, "a surge keeps the size"
    rollout = pool.status()["rollout"]
    assert (rollout["strategy"], rollout["revision"]) == ("Surge", 2), rollout["reason"]
    assert_all_answered(burst)

    before, burst = uids(pool), callers(pool)
    pool.patch(**NO_SUCH_IMAGE)
    message = pool.wait_for_reason("Stalled", "RolloutAborted", timeout_seconds=120)
    assert "ImageUnavailable" in message
    assert f"{NUM_REPLICAS} replicas go on serving" in message
    wait_for("the broken replica is gone", lambda: uids(pool) == before, timeout_seconds=60)
    assert_all_answered(burst)
    sim_engines.assert_quiescent(pools_namespace)

    pool.patch(engine=None, rollout=None)
    pool.wait_for_condition("Ready")
    assert uids(pool) == before, "what serves is what is wanted again: nothing restarts"
    sim_engines.assert_quiescent(pools_namespace)


def test_without_a_spare_gpu_replicas_are_replaced_one_by_one(
    cluster: Cluster, sim_engines: Installation, images: ImageBuilder, pools_namespace: str, pool: Pool
) -> None:
    neighbour = RestrictedPod(
        "neighbour", images.python.name, ("sleep", "infinity"), num_gpus=NUM_GPUS - NUM_REPLICAS
    ).manifest()
    cluster.kubectl("apply", "--namespace", pools_namespace, "-f", "-", input=neighbour)
    cluster.kubectl("wait", "--namespace", pools_namespace, "--for=condition=Ready", "pod/neighbour", "--timeout=60s")
    before, burst = uids(pool), callers(pool)
    pool.patch(**SMALLER)
    assert wait_for_rollout(pool, before) >= NUM_REPLICAS - 1
    assert pool.status()["rollout"]["strategy"] == "Replace", pool.status()["rollout"]["reason"]
    assert_all_answered(burst)
    sim_engines.assert_quiescent(pools_namespace)
    cluster.kubectl("delete", "pod", "neighbour", "--namespace", pools_namespace)
