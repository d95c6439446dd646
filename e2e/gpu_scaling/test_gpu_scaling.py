"""Pools on the node's GPUs follow their load, as far as there are GPUs; engines simulate, everything else is real."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from e2e.cluster.cluster import Cluster
from e2e.cluster.fixtures import NUM_GPUS
from e2e.cluster.images import ImageBuilder
from e2e.cluster.pods import RestrictedPod
from e2e.installation.burst import Burst
from e2e.installation.engines import EnginePod
from e2e.installation.operator import Installation
from e2e.installation.polling import wait_for
from e2e.installation.pool import Pool
from e2e.installation.sim_pool import SLOTS, provide_sim_model, sim_pool
from tidegate_core.telemetry import API_PORT

BURST = {"minReplicas": 1, "maxReplicas": 2, "scaling": {"scaleDownHoldSeconds": 5}, "drain": {"timeoutSeconds": 120}}
PATIENT = {"maxRequests": 64, "maxWaitSeconds": 3600}  # a queue that refuses nobody
ANSWER_TOKENS = 100  # 2 s and more

LONG_ANSWER_TOKENS = 2400  # 50 s and more: the scaler looks 30 s back before it lets a replica go


@pytest.fixture
def models(cluster: Cluster, pools_namespace: str, tmp_path: Path) -> None:
    provide_sim_model(cluster, pools_namespace, tmp_path)


def test_a_burst_is_followed_up_and_down_and_who_leaves_is_drained_first(
    cluster: Cluster, sim_engines: Installation, pools_namespace: str, models: None
) -> None:
    pool = Pool.apply(cluster, pools_namespace, sim_pool("chat", queue=PATIENT, **BURST))
    pool.wait_for_condition("Ready")
    assert pool.status()["sizing"]["slots"] == SLOTS
    burst = Burst(pool.url(), "chat", num_clients=4 * SLOTS, max_tokens=ANSWER_TOKENS)
    burst.start()
    pool.wait_for_ready_replicas(2)
    long_answers = [long_answer(engine) for engine in pool.engines()]
    result = burst.finish()
    assert (result.num_failed, result.num_refused) == (0, 0), result.fault

    leaving = wait_for("a pod that is out of the Service", lambda: out_of_service(pool), timeout_seconds=120)
    assert leaving.load().running == 1
    assert not leaving.is_terminating
    for answer in long_answers:
        result = answer.finish()
        assert (result.num_completed, result.num_failed) == (1, 0), result.fault
    wait_for("one replica", lambda: len(pool.engines()) == 1, timeout_seconds=60)
    assert leaving.name not in {engine.name for engine in pool.engines()}
    pool.wait_for_condition("Ready")
    moves = pool.scaling_history()
    assert "predicted wait" in moves[-1]["reason"]
    assert "would have done" in moves[0]["reason"]
    assert (moves[-1]["from"], moves[0]["to"]) == (1, 1)
    sim_engines.assert_quiescent(pools_namespace)


def test_preemptions_order_a_replica_that_waits_for_a_gpu_by_name_and_comes_up_when_one_is_free(
    cluster: Cluster, sim_engines: Installation, images: ImageBuilder, pools_namespace: str, models: None
) -> None:
    sim_engines.upgrade(runner="sim", simPreemptionsPerMinute=600)
    wide = {"maxReplicas": NUM_GPUS + 2, "scaling": {"scaleDownHoldSeconds": 600}}
    with gpus_in_use(cluster, pools_namespace, images, NUM_GPUS - 1):
        pool = Pool.apply(cluster, pools_namespace, sim_pool("chat", queue=PATIENT, **wide))
        pool.wait_for_condition("Ready")
        single = Burst(pool.url(), "chat", num_clients=1, max_tokens=ANSWER_TOKENS)
        single.start()
        assert "Insufficient nvidia.com/gpu" in pool.wait_for_reason("Progressing", "Unschedulable")
        result = single.finish()
        assert result.num_failed == 0, result.fault
        (order,) = pool.scaling_history()
        assert (order["from"], order["to"]) == (1, 2)
        assert "preemptions" in order["reason"]

        crowd = Burst(pool.url(), "chat", num_clients=10 * SLOTS, max_tokens=1000)
        crowd.start()
        pool.wait_for_reason("ScalingLimited", "Unschedulable")
        result = crowd.leave()
        assert result.num_failed == 0, result.fault
    pool.wait_for_ready_replicas(2)
    pool.wait_for_condition("Ready")
    sim_engines.assert_quiescent(pools_namespace)


def test_a_replica_on_two_gpus_gets_two_of_its_node_with_memory_to_talk_through_and_serves(
    cluster: Cluster, sim_engines: Installation, pools_namespace: str, models: None
) -> None:
    pool = Pool.apply(cluster, pools_namespace, sim_pool("wide", accelerator={"memory": "24Gi", "count": 2}))
    pool.wait_for_condition("Ready")
    assert pool.status()["sizing"]["tensorParallel"] == 2
    (engine,) = pool.engines()
    script = (
        "import os; shm = os.statvfs('/dev/shm'); "
        "print(os.environ['NVIDIA_VISIBLE_DEVICES'], shm.f_blocks * shm.f_frsize)"
    )
    said = cluster.kubectl("exec", engine.name, "--namespace", pools_namespace, "--", "python", "-c", script)
    devices, shm_bytes = said.split()
    assert len(set(devices.split(","))) == 2
    assert int(shm_bytes) > 64 * 2**20, "what a container has without a volume of its own"
    client = Burst(pool.url(), "wide", num_clients=1, max_tokens=ANSWER_TOKENS, asks_once=True)
    client.start()
    result = client.finish()
    assert (result.num_completed, result.num_failed) == (1, 0), result.fault
    sim_engines.assert_quiescent(pools_namespace)


def long_answer(engine: EnginePod) -> Burst:
    """One answer, asked of this engine, that goes on until long after the burst."""
    url = f"http://{engine.address}:{API_PORT}/v1"
    answer = Burst(url, "chat", num_clients=1, max_tokens=LONG_ANSWER_TOKENS, asks_once=True)
    answer.start()
    return answer


def out_of_service(pool: Pool) -> EnginePod | None:
    return next((engine for engine in pool.engines() if not engine.is_serving), None)


@contextmanager
def gpus_in_use(cluster: Cluster, namespace: str, images: ImageBuilder, number: int) -> Iterator[None]:
    pod = RestrictedPod("neighbour", images.python.name, ("sleep", "infinity"), num_gpus=number)
    cluster.kubectl("apply", "--namespace", namespace, "-f", "-", input=pod.manifest())
    cluster.kubectl("wait", "--namespace", namespace, "--for=condition=Ready", "pod/neighbour", "--timeout=60s")
    yield
    cluster.kubectl("delete", "pod", "neighbour", "--namespace", namespace)
