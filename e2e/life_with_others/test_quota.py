"""A namespace with a GPU quota: the pool says which quota keeps it small, serves meanwhile, and grows when it may."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from e2e.cluster.cluster import Cluster
from e2e.installation.operator import Installation
from e2e.installation.pool import Pool
from e2e.installation.sim_pool import provide_sim_model, sim_pool

RESOURCE = "requests.nvidia.com/gpu"


def quota(num_gpus: int) -> str:
    document = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "gpus"},
        "spec": {"hard": {RESOURCE: str(num_gpus)}},
    }
    return json.dumps(document)


def shown(cluster: Cluster, pool: Pool) -> list[dict[str, Any]]:
    """The replicas in `tidegate status`, which asks them through the API server."""
    options = ("--kubeconfig", str(cluster.kubeconfig), "--namespace", pool.namespace, "-o", "json")
    command = (sys.executable, "-m", "tidegate_cli", "status", pool.name, *options)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    replicas: list[dict[str, Any]] = json.loads(done.stdout)["replicas"]
    return replicas


def test_a_pool_above_its_namespace_s_quota_says_so_and_grows_when_the_quota_does(
    cluster: Cluster, sim_engines: Installation, pools_namespace: str, tmp_path: Path
) -> None:
    provide_sim_model(cluster, pools_namespace, tmp_path)
    apply = ("apply", "--namespace", pools_namespace, "-f", "-")
    cluster.kubectl(*apply, input=quota(1))
    pool = Pool.apply(cluster, pools_namespace, sim_pool("chat", replicas=2, scaling={"mode": "Manual"}))
    pool.wait_for_ready_replicas(1)
    said = pool.wait_for_reason("Ready", "QuotaExceeded")
    assert RESOURCE in said
    sim_engines.assert_quiescent(pools_namespace)
    assert [replica["load"]["running"] for replica in shown(cluster, pool)] == [0]

    cluster.kubectl(*apply, input=quota(2))
    pool.wait_for_ready_replicas(2, timeout_seconds=120)
    pool.wait_for_condition("Ready")
    sim_engines.assert_quiescent(pools_namespace)
