"""I/O: the ResourceQuotas of the namespaces that are served, listed together a few times a minute. Reads only."""

import asyncio
import logging
import time
from collections.abc import Callable

from tidegate_operator.errors import Forbidden, KubeError
from tidegate_operator.kube import Kube
from tidegate_operator.resources import RESOURCE_QUOTA
from tidegate_operator.world.quota import Quota, read_quota

QUOTAS_TTL_SECONDS = 15.0
_log = logging.getLogger(__name__)


class QuotaCache:
    """One list for all pools; without namespaces that of the whole cluster.

    A quota that is not known caps nothing: the API server holds it all the same, and its words are shown.
    """

    def __init__(self, kube: Kube, namespaces: tuple[str, ...], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._kube = kube
        self._namespaces = namespaces or (None,)
        self._clock = clock
        self._quotas: tuple[Quota, ...] = ()
        self._read_at = float("-inf")
        self._reading = asyncio.Lock()

    async def of(self, namespace: str, *, max_age_seconds: float = QUOTAS_TTL_SECONDS) -> tuple[Quota, ...]:
        """Those of a pool's namespace, as of seconds ago."""
        async with self._reading:
            if self._clock() - self._read_at > max_age_seconds:
                self._read_at = self._clock()
                await self._look()
        return tuple(each for each in self._quotas if each.namespace == namespace)

    async def _look(self) -> None:
        try:
            lists = [await self._kube.list(RESOURCE_QUOTA, namespace) for namespace in self._namespaces]
        except Forbidden:
            self._quotas = ()
        except KubeError as error:
            _log.warning("quotas are as they were last known: %s", error)
        else:
            self._quotas = tuple(read_quota(item) for items in lists for item in items)
