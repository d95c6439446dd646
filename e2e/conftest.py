"""Fixtures of the scenarios: a real cluster with a node, its images, the operator, and a restricted namespace per test.

One operator is installed for all of them. Which engines it deploys is a value of its chart, so scenarios ask for
`torch_engines` or `sim_engines`; those that simulate come last, which leaves one upgrade in a session.
"""

from collections.abc import Generator, Iterator

import pytest

from e2e.cluster.cluster import Cluster
from e2e.cluster.fixtures import (
    cluster,
    dump_on_failure,
    engine_image,
    fresh_namespace,
    images,
    no_foreign_clusters,
    operator_image,
)
from e2e.cluster.images import ImageBuilder
from e2e.installation.namespaces import RESTRICTED, namespace_of_pools
from e2e.installation.operator import Installation

__all__ = ["cluster", "engine_image", "images", "no_foreign_clusters", "operator_image"]


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    with fresh_namespace(cluster, RESTRICTED) as name:
        yield name


@pytest.fixture(scope="session")
def installation(cluster: Cluster, images: ImageBuilder) -> Installation:
    return Installation.install(cluster, images, runner="torch")


@pytest.fixture(scope="module")
def torch_engines(installation: Installation) -> Installation:
    installation.upgrade(runner="torch")
    return installation


@pytest.fixture
def sim_engines(installation: Installation) -> Installation:
    installation.upgrade(runner="sim")
    return installation


@pytest.fixture
def pools_namespace(cluster: Cluster) -> Iterator[str]:
    with namespace_of_pools(cluster) as name:
        yield name


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: "sim_engines" in getattr(item, "fixturenames", ()))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    dump_on_failure(item, report)
    return report
