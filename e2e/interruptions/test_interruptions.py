"""The operator dies, or the pool goes, while a real engine loads: each in the middle of something only a node does."""

from e2e.cluster.cluster import Cluster
from e2e.installation.operator import Installation
from e2e.installation.polling import wait_for
from e2e.installation.pool import Pool, provide_model
from e2e.installation.real_pool import real_pool


def loading(cluster: Cluster, namespace: str) -> Pool:
    """A pool whose one engine runs and is not ready yet."""
    provide_model(cluster, namespace)
    pool = Pool.apply(cluster, namespace, real_pool("chat"))
    wait_for("an engine that runs", lambda: any(engine.is_running for engine in pool.engines()), timeout_seconds=90)
    assert not pool.engines()[0].is_ready, "the engine was ready at once: nothing is interrupted"
    return pool


def test_an_operator_that_is_killed_while_an_engine_loads_goes_on_where_it_was(
    cluster: Cluster, torch_engines: Installation, pools_namespace: str
) -> None:
    pool = loading(cluster, pools_namespace)
    before = pool.engines()
    torch_engines.restart()
    pool.wait_for_condition("Ready")
    assert [(engine.uid, engine.num_restarts) for engine in pool.engines()] == [(before[0].uid, 0)]
    torch_engines.assert_quiescent(pools_namespace)


def test_a_pool_deleted_while_its_engine_loads_leaves_nothing(
    cluster: Cluster, torch_engines: Installation, pools_namespace: str
) -> None:
    pool = loading(cluster, pools_namespace)
    pool.delete()
    pool.wait_until_nothing_is_left()
    assert "Traceback" not in torch_engines.logs()
