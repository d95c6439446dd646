"""Fixtures of this folder: a real API server with its controllers, and a namespace for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster.api_server import ApiServer
from e2e.cluster.fixtures import api_server, fresh_namespace, no_foreign_clusters
from e2e.installation.crds import wait_for_crds
from fake_engines import FakeEngines, fake_engines
from kubelet import Ending, Kubelet, kubelet
from operator_forks import OperatorForks, operator_forks
from operator_process import CRD_FILE, OperatorUnderTest, operator_process
from pod_watch import PodWatch, pod_watch
from pools import CLAIM
from shapes import shape_of

__all__ = ["api_server", "namespace", "no_foreign_clusters"]

TOKEN = "a-token-of-this-test"


@pytest.fixture
def namespace(api_server: ApiServer) -> Iterator[str]:
    with fresh_namespace(api_server, {}) as name:
        yield name


@pytest.fixture(scope="session")
def crd(api_server: ApiServer) -> None:
    """InferencePools exist here."""
    api_server.kubectl("apply", "--server-side", "-f", CRD_FILE)
    wait_for_crds(api_server)


@pytest.fixture(scope="session")
def forks() -> Iterator[OperatorForks]:
    with operator_forks() as started:
        yield started


@pytest.fixture(scope="session")
def pods(api_server: ApiServer) -> Iterator[PodWatch]:
    with pod_watch(api_server.requests) as started:
        yield started


@pytest.fixture
def pools_namespace(api_server: ApiServer, namespace: str, crd: None) -> str:
    """One where pools can be made, with the claim that those of pools.py name."""
    api_server.requests.create(f"/api/v1/namespaces/{namespace}/persistentvolumeclaims", CLAIM)
    return namespace


@pytest.fixture
def engines() -> Iterator[FakeEngines]:
    with fake_engines(TOKEN) as started:
        yield started


@pytest.fixture
def nodes(api_server: ApiServer, pods: PodWatch, namespace: str, engines: FakeEngines) -> Iterator[Kubelet]:
    """A kubelet stand-in; inspections find a model of 8 billion parameters."""
    with kubelet(api_server.requests, pods, namespace, engines, Ending(0, shape_of().to_json())) as stand_in:
        yield stand_in


@pytest.fixture
def stopped_operator(
    api_server: ApiServer, forks: OperatorForks, pools_namespace: str, tmp_path: Path
) -> Iterator[OperatorUnderTest]:
    """The operator of a namespace, not started."""
    with operator_process(api_server, forks, pools_namespace, tmp_path, TOKEN) as prepared:
        yield prepared


@pytest.fixture
def operator(stopped_operator: OperatorUnderTest, nodes: Kubelet) -> OperatorUnderTest:
    stopped_operator.start()
    return stopped_operator
