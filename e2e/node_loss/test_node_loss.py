"""A node dies without a word: the other replica serves on, and the lost one is replaced once the node is given up.

The node is a second one, made for this scenario. Its Node object is deleted, as a cloud's controller does when the
machine is gone; until then nobody can tell a dead node from a slow one.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster.cluster import Cluster
from e2e.cluster.node import NodeSpec
from e2e.installation.burst import Burst
from e2e.installation.operator import Installation
from e2e.installation.polling import wait_for
from e2e.installation.pool import Pool
from e2e.installation.sim_pool import provide_sim_model, sim_pool

APART = {
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"labelSelector": {"matchLabels": {"tidegate.dev/pool": "chat"}}, "topologyKey": "kubernetes.io/hostname"}
        ]
    }
}


@pytest.fixture
def second_node(cluster: Cluster) -> Iterator[int]:
    cluster.add_nodes([NodeSpec(num_gpus=1)])
    index = cluster.num_nodes
    yield index
    cluster.lose_node(index)
    cluster.kubectl("delete", "node", f"node{index}", "--ignore-not-found", "--wait=false")


def test_a_lost_node_costs_its_own_replica_only_and_that_is_replaced(
    cluster: Cluster, sim_engines: Installation, pools_namespace: str, tmp_path: Path, second_node: int
) -> None:
    provide_sim_model(cluster, pools_namespace, tmp_path)
    resources = {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}}
    apart = {"affinity": APART, "resources": resources}
    manual = {"scaling": {"mode": "Manual"}, "replicas": 2}
    pool = Pool.apply(cluster, pools_namespace, sim_pool("chat", pod=apart, **manual))
    pool.wait_for_ready_replicas(2)
    lost = on_node(cluster, pool, second_node)
    cluster.lose_node(second_node)

    # What was replaced needs room where the first replica is; the user takes the rule back, which is a rollout.
    cluster.kubectl("delete", "node", f"node{second_node}", "--wait=false")
    wait_for("the lost replica out of the pool", lambda: lost not in {each.uid for each in pool.engines()}, 150)
    answer = Burst(pool.url(), "chat", num_clients=1, max_tokens=10, asks_once=True)
    answer.start()
    result = answer.finish()
    assert (result.num_completed, result.num_failed) == (1, 0), result.fault
    assert "node" in pool.wait_for_reason("Progressing", "Unschedulable", timeout_seconds=90)
    pool.patch(pod={"affinity": None})
    pool.wait_for_ready_replicas(2, timeout_seconds=120)
    pool.wait_for_condition("Ready")
    sim_engines.assert_quiescent(pools_namespace)


def on_node(cluster: Cluster, pool: Pool, index: int) -> str:
    """The uid of the pool's engine there."""
    text = cluster.kubectl(
        "get", "pods", "--namespace", pool.namespace, "--field-selector", f"spec.nodeName=node{index}",
        "--selector", f"tidegate.dev/pool={pool.name}", "-o", "jsonpath={.items[*].metadata.uid}",
    )  # fmt: skip
    (uid,) = text.split()
    return uid
