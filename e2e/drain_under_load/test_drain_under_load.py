"""A node drain evicts an engine in the middle of a long answer: the answer ends well, and nobody else notices."""

import json
from pathlib import Path

from e2e.cluster.cluster import Cluster
from e2e.installation.burst import Burst
from e2e.installation.engines import EnginePod
from e2e.installation.operator import Installation
from e2e.installation.polling import wait_for
from e2e.installation.pool import Pool
from e2e.installation.sim_pool import provide_sim_model, sim_pool

LONG_ANSWER_TOKENS = 700  # 14 s and more
SHORT_ANSWER_TOKENS = 20


def busy(pool: Pool) -> EnginePod | None:
    """The engine that has a request, if there is one."""
    return next((engine for engine in pool.engines() if engine.load().running), None)


def evict(cluster: Cluster, namespace: str, name: str) -> None:
    """What `kubectl drain` asks of the API server for each pod of a node; a budget may refuse it."""
    document = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": namespace}}
    path = f"/api/v1/namespaces/{namespace}/pods/{name}/eviction"
    cluster.kubectl("create", "--raw", path, "-f", "-", input=json.dumps(document))


def test_an_evicted_pod_finishes_its_answer_and_new_requests_go_elsewhere(
    cluster: Cluster, sim_engines: Installation, pools_namespace: str, tmp_path: Path
) -> None:
    provide_sim_model(cluster, pools_namespace, tmp_path)
    manual = {"scaling": {"mode": "Manual"}, "replicas": 2, "drain": {"timeoutSeconds": 60}}
    pool = Pool.apply(cluster, pools_namespace, sim_pool("chat", **manual))
    pool.wait_for_ready_replicas(2)
    stream = Burst(pool.url(), "chat", num_clients=1, max_tokens=LONG_ANSWER_TOKENS, asks_once=True)
    stream.start()
    leaving = wait_for("the engine of the long answer", lambda: busy(pool), timeout_seconds=20)
    others = Burst(pool.url(), "chat", num_clients=2, max_tokens=SHORT_ANSWER_TOKENS)
    others.start()

    evict(cluster, pools_namespace, leaving.name)
    wait_for(f"the drain of {leaving.name}", lambda: leaving.load().draining, timeout_seconds=30)
    assert stream.result.num_completed == 0, "the long answer is over before its engine drains"
    answered = stream.finish()
    assert (answered.num_completed, answered.num_failed) == (1, 0), answered.fault
    assert answered.num_tokens >= LONG_ANSWER_TOKENS * 0.9
    result = others.finish()
    assert (result.num_failed, result.num_refused) == (0, 0), result.fault
    assert result.num_completed > 5

    wait_for(f"the end of {leaving.name}", lambda: leaving.uid not in {e.uid for e in pool.engines()}, 60)
    pool.wait_for_condition("Ready")
    pool.wait_for_ready_replicas(2)
    sim_engines.assert_quiescent(pools_namespace)
