"""Reading a pool: what cannot be read is named for a person, field by field."""

import asyncio
from typing import Any

import pytest

from pools import pool_manifest
from tidegate_operator.errors import UnreadablePool
from tidegate_operator.kube import ApiServer
from tidegate_operator.observe import observe_pool


class StoredPool(ApiServer):
    """One object, whatever is asked for."""

    def __init__(self, stored: dict[str, Any]) -> None:
        self._stored = stored

    async def get(self, *_: object) -> dict[str, Any]:
        return self._stored


def test_a_pool_of_another_crd_is_named_with_its_fields_instead_of_a_traceback() -> None:
    kube = StoredPool(pool_manifest(replicas="many"))
    with pytest.raises(UnreadablePool, match=r"spec\.replicas: .*is the CRD of this operator's version installed"):
        asyncio.run(observe_pool(kube, ("team", "chat")))
