"""`helm upgrade` with another engine: pools that are pinned keep their pods, one that follows gets the new engine."""

from pathlib import Path

from e2e.cluster.cluster import Cluster
from e2e.installation.operator import Installation
from e2e.installation.polling import wait_for
from e2e.installation.pool import Pool
from e2e.installation.sim_pool import provide_sim_model, sim_pool


def test_an_upgrade_restarts_no_engine_but_those_of_pools_that_follow(
    cluster: Cluster, sim_engines: Installation, pools_namespace: str, tmp_path: Path
) -> None:
    provide_sim_model(cluster, pools_namespace, tmp_path)
    pinned = Pool.apply(cluster, pools_namespace, sim_pool("pinned"))
    following = Pool.apply(cluster, pools_namespace, sim_pool("following", engine={"upgrade": "Follow"}))
    for pool in (pinned, following):
        pool.wait_for_condition("Ready")
    before = {pool.name: uids(pool) for pool in (pinned, following)}

    sim_engines.upgrade(runner="sim", simPreemptionsPerMinute=0.001)  # another engine, as far as templates go
    wait_for("another engine of the pool that follows", lambda: uids(following).isdisjoint(before["following"]), 120)
    following.wait_for_condition("Ready")
    sim_engines.assert_quiescent(pools_namespace)
    assert uids(pinned) == before["pinned"]

    pinned.patch(context={"max": 4096, "min": 2048})  # the user's change brings the new engine
    wait_for("another engine of the pinned pool", lambda: uids(pinned).isdisjoint(before["pinned"]), 120)
    pinned.wait_for_condition("Ready")
    sim_engines.assert_quiescent(pools_namespace)


def uids(pool: Pool) -> set[str]:
    return {engine.uid for engine in pool.engines() if not engine.is_terminating}
