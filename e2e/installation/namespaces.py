"""Namespaces as a careful cluster has them: pods that are not restricted are refused."""

from collections.abc import Iterator
from contextlib import contextmanager

from e2e.cluster.cluster import Cluster
from e2e.cluster.fixtures import fresh_namespace
from e2e.installation.pool import KIND

RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}


@contextmanager
def namespace_of_pools(cluster: Cluster) -> Iterator[str]:
    """Its pools are gone at the end, so that a later look at the operator's reconciles counts none of theirs."""
    with fresh_namespace(cluster, RESTRICTED) as name:
        yield name
        cluster.kubectl("delete", KIND, "--all", "--namespace", name)
