"""Fixtures of the scenarios: a real cluster with a node, its images, and a restricted namespace for each test."""

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

__all__ = ["cluster", "engine_image", "images", "namespace", "no_foreign_clusters", "operator_image"]

RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    with fresh_namespace(cluster, RESTRICTED) as name:
        yield name


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    dump_on_failure(item, report)
    return report
