"""Fixtures of this folder: a real API server with its controllers, and a namespace for each test."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster.api_server import ApiServer
from e2e.cluster.fixtures import api_server, fresh_namespace, no_foreign_clusters
from e2e.installation.crds import wait_for_crds
from fake_engines import FakeEngines, fake_engines
from kubelet import Ending, Kubelet, kubelet
from operator_process import CRD_FILE, OperatorUnderTest, operator_process
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


@pytest.fixture
def engines() -> Iterator[FakeEngines]:
    with fake_engines(TOKEN) as started:
        yield started


@pytest.fixture
def nodes(api_server: ApiServer, namespace: str, engines: FakeEngines) -> Iterator[Kubelet]:
    """A kubelet stand-in; inspections find a model of 8 billion parameters."""
    with kubelet(api_server.admin_kubeconfig, namespace, engines, Ending(0, shape_of().to_json())) as stand_in:
        yield stand_in


@pytest.fixture
def stopped_operator(api_server: ApiServer, namespace: str, crd: None, tmp_path: Path) -> Iterator[OperatorUnderTest]:
    """The operator of a namespace that has the model's claim, not started."""
    api_server.kubectl("apply", "-n", namespace, "-f", "-", input=json.dumps(CLAIM))
    with operator_process(api_server, namespace, tmp_path, TOKEN) as prepared:
        yield prepared


@pytest.fixture
def operator(stopped_operator: OperatorUnderTest, nodes: Kubelet) -> OperatorUnderTest:
    stopped_operator.start()
    return stopped_operator
