"""A GitOps controller owns the manifest: it re-applies it for ever, and must find nothing to do and undo nothing."""

import json
from pathlib import Path

from e2e.cluster.cluster import Cluster
from e2e.installation.operator import Installation
from e2e.installation.pool import KIND, Pool
from e2e.installation.sim_pool import provide_sim_model, sim_pool
from e2e.installation.versions import resource_versions

MANAGER = "--field-manager=argocd-controller"


def test_a_manifest_that_is_applied_again_and_again_changes_nothing(
    cluster: Cluster, sim_engines: Installation, pools_namespace: str, tmp_path: Path
) -> None:
    provide_sim_model(cluster, pools_namespace, tmp_path)
    manifest = sim_pool("chat", maxReplicas=2)
    apply = ("apply", "--server-side", MANAGER, "--namespace", pools_namespace, "-f", "-")
    cluster.kubectl(*apply, input=manifest)
    pool = Pool(cluster, pools_namespace, "chat")
    pool.wait_for_condition("Ready")
    sim_engines.assert_quiescent(pools_namespace)

    before = resource_versions(cluster, pools_namespace)
    for _ in range(3):
        cluster.kubectl(*apply, input=manifest)
        rehearsed = cluster.kubectl(*apply, "--dry-run=server", "-o", "json", input=manifest)
        assert json.loads(rehearsed)["spec"] == pool.get()["spec"]
    sim_engines.assert_quiescent(pools_namespace)
    assert resource_versions(cluster, pools_namespace) == before
    owners = {entry["manager"] for entry in pool_with_owners(cluster, pool)["metadata"]["managedFields"]}
    assert owners == {"argocd-controller", "tidegate-status"}, "somebody else wrote into the spec"


def pool_with_owners(cluster: Cluster, pool: Pool) -> dict[str, dict[str, list[dict[str, str]]]]:
    text = cluster.kubectl("get", KIND, pool.name, "--namespace", pool.namespace, "-o", "json", "--show-managed-fields")
    found: dict[str, dict[str, list[dict[str, str]]]] = json.loads(text)
    return found
