"""`helm uninstall` with pools still there: they serve on, and they and their namespace can be deleted without it."""

from pathlib import Path

from e2e.cluster.cluster import Cluster
from e2e.installation.burst import Burst
from e2e.installation.namespaces import RESTRICTED
from e2e.installation.operator import Installation
from e2e.installation.polling import wait_for
from e2e.installation.pool import KIND, Pool
from e2e.installation.sim_pool import provide_sim_model, sim_pool

NAMESPACE = "left-alone"


def test_without_the_operator_pools_serve_on_and_their_namespace_can_go(
    cluster: Cluster, sim_engines: Installation, tmp_path: Path
) -> None:
    cluster.create_namespace(NAMESPACE, RESTRICTED)
    provide_sim_model(cluster, NAMESPACE, tmp_path)
    # A namespace's end is looked for again after half the longest grace of its pods, so the drain is a short one.
    pool = Pool.apply(cluster, NAMESPACE, sim_pool("chat", drain={"timeoutSeconds": 5}))
    pool.wait_for_condition("Ready")
    with sim_engines.uninstalled():
        answer = Burst(pool.url(), "chat", num_clients=1, max_tokens=10, asks_once=True)
        answer.start()
        result = answer.finish()
        assert (result.num_completed, result.num_failed) == (1, 0), result.fault
        assert "inferencepools" in cluster.kubectl("get", "crd", KIND, "-o", "name")
        cluster.delete_namespace(NAMESPACE)
        wait_for("the end of the namespace", lambda: is_gone(cluster), timeout_seconds=120)
    assert "Traceback" not in sim_engines.logs()


def is_gone(cluster: Cluster) -> bool:
    return cluster.requests.find(f"/api/v1/namespaces/{NAMESPACE}") is None
