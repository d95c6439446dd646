"""Kube whose reads of pools and their children come from the cache, and whose writes are known to it at once.

reconcile.py works with it, so a run after our own write never acts on less than it wrote: the answer of the API server
is in the cache before the write returns. A child that the cache does not know is looked up, since only labelled objects
are watched and a stranger may have its name; lookups.py keeps such answers. Whoever does not lead may not write.
"""

import time
from collections.abc import AsyncIterator, Callable

from tidegate_operator.kube import Kube, Page
from tidegate_operator.labels import POOL_LABEL
from tidegate_operator.resources import POOL, Key, Manifest, Resource, resource_of
from tidegate_operator.world.cache import CACHED, Cache, Versions
from tidegate_operator.world.lookups import LookUps

_SELECTOR = f"{POOL_LABEL}="


class CachedKube:
    """A Kube. `before_write` raises where nothing may be written."""

    def __init__(
        self,
        kube: Kube,
        cache: Cache,
        *,
        before_write: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kube = kube
        self._cache = cache
        self._before_write = before_write
        self._look_ups = LookUps(clock)

    def versions(self, key: Key) -> Versions:
        """Of a pool and all that is known to carry its label."""
        return self._cache.versions(key)

    async def get(
        self, resource: Resource, namespace: str | None, name: str, *, max_age_seconds: float = 0.0
    ) -> Manifest | None:
        if resource not in CACHED or namespace is None:
            return await self._kube.get(resource, namespace, name)
        known = self._cache.get(resource, namespace, name)
        if known is not None or resource == POOL:
            return known
        if look_up := self._look_ups.find((resource, namespace, name), max_age_seconds):
            return look_up.found
        found = await self._kube.get(resource, namespace, name)
        if found is None or not self._learn(resource, found):
            self._look_ups.learn((resource, namespace, name), found)
        return found

    async def list(
        self, resource: Resource, namespace: str | None, *, labels: str = "", fields: str = ""
    ) -> tuple[Manifest, ...]:
        """From the cache where a pool's label is all that selects."""
        pool = labels.removeprefix(_SELECTOR)
        if resource in CACHED and namespace and labels.startswith(_SELECTOR) and "," not in pool and not fields:
            return self._cache.of_pool(resource, namespace, pool)
        return await self._kube.list(resource, namespace, labels=labels, fields=fields)

    def pages(
        self, resource: Resource, namespace: str | None, *, labels: str = "", fields: str = ""
    ) -> AsyncIterator[Page]:
        """Lists make the cache, so they are never taken from it."""
        return self._kube.pages(resource, namespace, labels=labels, fields=fields)

    async def apply(self, manifest: Manifest, *, is_rehearsal: bool = False) -> Manifest:
        self._before_write()
        answer = await self._kube.apply(manifest, is_rehearsal=is_rehearsal)
        if not is_rehearsal:
            self._learn(resource_of(manifest), answer)
        return answer

    async def patch(self, resource: Resource, namespace: str, name: str, patch: Manifest) -> Manifest:
        self._before_write()
        answer = await self._kube.patch(resource, namespace, name, patch)
        self._learn(resource, answer)
        return answer

    async def delete(self, resource: Resource, namespace: str, name: str, uid: str) -> Manifest | None:
        self._before_write()
        left = await self._kube.delete(resource, namespace, name, uid)
        known = self._cache.get(resource, namespace, name) if resource in CACHED else None
        if left is not None:
            self._learn(resource, left)
        elif known is not None and known["metadata"]["uid"] == uid:
            self._cache.remove(resource, known)
        return left

    async def patch_status(self, pool: Manifest) -> Manifest:
        self._before_write()
        answer = await self._kube.patch_status(pool)
        self._learn(POOL, answer)
        return answer

    async def create(self, manifest: Manifest) -> Manifest:
        self._before_write()
        return await self._kube.create(manifest)

    def _learn(self, resource: Resource, item: Manifest) -> bool:
        """Whether it is kept: what no watch would tell of later is not."""
        is_watched = resource == POOL or POOL_LABEL in item["metadata"].get("labels", {})
        if resource not in CACHED or not is_watched:
            return False
        self._cache.put(resource, item)
        return True
