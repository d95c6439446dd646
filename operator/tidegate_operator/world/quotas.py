"""I/O: the ResourceQuotas of the namespaces that are served, listed together a few times a minute. Reads only."""

import time
from collections.abc import Callable

from tidegate_operator.kube import Kube
from tidegate_operator.resources import RESOURCE_QUOTA
from tidegate_operator.world.kept import Kept
from tidegate_operator.world.quota import Quota, read_quota

QUOTAS_TTL_SECONDS = 15.0


class QuotaCache:
    """One list for all pools; without namespaces that of the whole cluster.

    A quota that is not known caps nothing: the API server holds it all the same, and its words are shown.
    """

    def __init__(self, kube: Kube, namespaces: tuple[str, ...], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._kube = kube
        self._namespaces = namespaces or (None,)
        self._kept = Kept("resourcequotas", self._read, clock=clock)

    async def of(self, namespace: str, *, max_age_seconds: float = QUOTAS_TTL_SECONDS) -> tuple[Quota, ...]:
        """Those of a pool's namespace, as of seconds ago."""
        sight = await self._kept.sight(max_age_seconds)
        return tuple(each for each in sight.value or () if each.namespace == namespace)

    async def _read(self) -> tuple[Quota, ...]:
        lists = [await self._kube.list(RESOURCE_QUOTA, namespace) for namespace in self._namespaces]
        return tuple(read_quota(item) for items in lists for item in items)
