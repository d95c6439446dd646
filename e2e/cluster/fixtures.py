"""pytest fixtures: an API server with controllers, and namespaces in it. Imported by the conftest of each folder.

api_server   session: a control plane without nodes (ApiServer); every xdist worker has its own
namespace    function: a fresh namespace there, deleted afterwards without waiting
"""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from e2e.cluster.access import ApiAccess
from e2e.cluster.api_server import ApiServer
from e2e.cluster.cluster import Cluster
from e2e.cluster.diagnostics import describe
from e2e.cluster.environment import FOREIGN
from e2e.cluster.images import ImageBuilder
from e2e.cluster.node import NodeSpec

NUM_GPUS = 4


@pytest.fixture(scope="session", autouse=True)
def no_foreign_clusters() -> None:
    """Clients inside the test process too must find no context and no proxy but those a test names."""
    for name in [name for name in os.environ if name.upper() in FOREIGN]:
        del os.environ[name]


@pytest.fixture(scope="session")
def api_server() -> Iterator[ApiServer]:
    server = ApiServer.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def images() -> ImageBuilder:
    return ImageBuilder.default()


@pytest.fixture(scope="session")
def cluster(images: ImageBuilder) -> Iterator[Cluster]:
    if os.geteuid():
        report = pytest.fail if os.environ.get("CI") else pytest.skip
        report("a cluster with nodes needs root: run this as root")
    started = Cluster.start([NodeSpec(num_gpus=NUM_GPUS)], [images.python])
    try:
        yield started
    finally:
        started.stop()


@pytest.fixture(scope="session")
def engine_image(cluster: Cluster, images: ImageBuilder) -> str:
    return cluster.provide_image(images.engine)


@pytest.fixture(scope="session")
def operator_image(cluster: Cluster, images: ImageBuilder) -> str:
    return cluster.provide_image(images.operator)


@contextmanager
def fresh_namespace(access: ApiAccess, labels: dict[str, str]) -> Iterator[str]:
    """A namespace of a unique name that has its default ServiceAccount; nobody waits for its end."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    access.create_namespace(name, labels)
    try:
        yield name
    finally:
        access.delete_namespace(name)


def dump_on_failure(item: pytest.Item, report: pytest.TestReport) -> None:
    """Adds what the cluster looks like to the report of a failed test that used one."""
    used = getattr(item, "funcargs", {}).get("cluster")
    if report.failed and isinstance(used, Cluster):
        report.sections.append(("cluster", describe(used)))
