"""Fixtures of the scenarios: a real cluster with a node, its images, the operator, and a restricted namespace per test.

One operator is installed for all of them. Which engines it deploys is a value of its chart, so scenarios ask for
`torch_engines` or `sim_engines`; those that simulate come last, which leaves one upgrade in a session of a worker.
"""

from collections.abc import Generator, Iterator
from pathlib import Path

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

# Folders in the order in which workers take them: those of `torch_engines` first, then the longest, so that none of the
# workers is left alone with a long one at the end. Folders that are not named here come last.
ORDER = (
    "first_pool", "interruptions", "bad_model", "node_loss", "gpu_scaling", "rollout", "lifecycle", "cluster_itself",
)  # fmt: skip


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
    """See ORDER; in a folder, too, scenarios that simulate come last."""
    places = {folder: place for place, folder in enumerate(ORDER)}

    def place(item: pytest.Item) -> tuple[int, Path, bool]:
        simulates = "sim_engines" in getattr(item, "fixturenames", ())
        return places.get(item.path.parent.name, len(ORDER)), item.path, simulates

    items.sort(key=place)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    dump_on_failure(item, report)
    return report
