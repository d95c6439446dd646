"""Fixtures of this folder: a real API server with its controllers, and a namespace for each test."""

from collections.abc import Iterator

import pytest

from e2e.cluster.api_server import ApiServer
from e2e.cluster.fixtures import api_server, fresh_namespace, no_foreign_clusters

__all__ = ["api_server", "namespace", "no_foreign_clusters"]


@pytest.fixture
def namespace(api_server: ApiServer) -> Iterator[str]:
    with fresh_namespace(api_server, {}) as name:
        yield name
