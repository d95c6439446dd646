"""I/O: keep the cache true and turn what changed into keys, whatever the watches miss. Called by __main__.

    start ─▶ list every kind ─▶ watches start ─▶ event: cache, key
                 ▲                                  │ an object came from a list: a watch had to begin anew,
                 └── resync ─────────── soon ◀──────┘ and kopf does not tell what was deleted meanwhile

A list is compared with the cache, so only what differs becomes a key. Pools are reconciled once every kind of their
namespace has been listed.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable

from tidegate_operator.errors import KubeError, NotFound
from tidegate_operator.kube import Kube
from tidegate_operator.labels import POOL_LABEL
from tidegate_operator.resources import POOL, Key, Manifest, Resource
from tidegate_operator.world.cache import CACHED, Cache, pool_key

POLL_SECONDS = 2.0  # until the CRD is installed, or a namespace can be read
MAX_SETTLE_ROUNDS = 15
SETTLE_SECONDS = 2.0  # a watch that begins anew tells of thousands of objects one by one

_log = logging.getLogger(__name__)


class Lookout:
    """`told` takes a watch's events, in the loop that `run` runs in."""

    def __init__(
        self,
        kube: Kube,
        cache: Cache,
        add: Callable[[Key], None],
        *,
        namespaces: tuple[str, ...],
        resync_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kube = kube
        self._cache = cache
        self._add = add
        self._scopes: tuple[str | None, ...] = namespaces or (None,)
        self._resync_seconds = resync_seconds
        self._clock = clock
        self._synced: set[str | None] = set()  # scopes listed since the beginning, or since it began anew
        self._num_beginnings = 0
        self._has_listed = False
        self._relist_wanted = asyncio.Event()
        self._told_at: dict[Resource, float] = {}

    @property
    def is_synced(self) -> bool:
        """Everything that can be read has been listed."""
        return self._has_listed

    def ages(self) -> Iterable[tuple[Resource, float]]:
        """Seconds since anything was heard of a kind, by event or list."""
        return [(resource, self._clock() - at) for resource, at in self._told_at.items()]

    def begin_anew(self) -> None:
        """Every pool becomes a key again, after a list of everything: for an operator that begins to lead."""
        self._synced.clear()
        self._num_beginnings += 1
        self._relist_wanted.set()

    def told(self, resource: Resource, kind_of_event: str | None, item: Manifest) -> None:
        """An event of a watch; its kind is None for an object that a watch listed."""
        self._told_at[resource] = self._clock()
        if kind_of_event is None:
            self._relist_wanted.set()
        is_news = (self._cache.remove if kind_of_event == "DELETED" else self._cache.put)(resource, item)
        if is_news or kind_of_event is not None:
            self._add_all([pool_key(resource, item)])

    async def run(self, start_watches: Callable[[], None]) -> None:
        """Until cancelled. Kinds are resolved when the watches start, so they start once the resource is there."""
        due, scopes = self._clock(), self._scopes
        while True:
            if self._clock() >= due:
                due, scopes = self._clock() + self._resync_seconds, self._scopes
            scopes = await self.relist(scopes)
            if self._synced:
                self._has_listed = True
                start_watches()
            left = max(0.0, due - self._clock())
            if await self._is_wanted_within(min(left, POLL_SECONDS) if scopes else left):
                due = self._clock()

    async def relist(self, scopes: tuple[str | None, ...]) -> tuple[str | None, ...]:
        """Those that could not be listed."""
        return tuple([scope for scope in scopes if not await self._relist_scope(scope)])

    async def _is_wanted_within(self, seconds: float) -> bool:
        """Whether a list is wanted before the next resync; if so, once watches have told what they listed."""
        try:
            async with asyncio.timeout(seconds):
                await self._relist_wanted.wait()
        except TimeoutError:
            return False
        for _ in range(MAX_SETTLE_ROUNDS if self._synced else 0):
            self._relist_wanted.clear()
            await asyncio.sleep(SETTLE_SECONDS)
            if not self._relist_wanted.is_set():
                break
        self._relist_wanted.clear()
        return True

    async def _relist_scope(self, scope: str | None) -> bool:
        changed: set[Key | None] = set()
        beginning = self._num_beginnings
        try:
            for resource in CACHED:
                changed |= await self._relist_kind(resource, scope)
        except NotFound:
            _log.warning("inferencepools.tidegate.dev is not installed; waiting for its CRD")
            return False
        except KubeError as error:
            _log.warning("%s", error)
            return False
        if scope not in self._synced and beginning == self._num_beginnings:
            self._synced.add(scope)
            changed |= set(self._cache.keys(POOL))
        self._add_all(changed)
        return True

    async def _relist_kind(self, resource: Resource, scope: str | None) -> set[Key | None]:
        """Keys of the pools whose objects are not as the cache had them."""
        changed: set[Key | None] = set()
        listed: set[Key] = set()
        version = 0
        async for page in self._kube.pages(resource, scope, labels="" if resource == POOL else POOL_LABEL):
            version = page.version
            listed |= {(item["metadata"]["namespace"], item["metadata"]["name"]) for item in page.items}
            changed |= {pool_key(resource, item) for item in page.items if self._cache.put(resource, item)}
            await asyncio.sleep(0)  # a page is tens of milliseconds of work; others want their turn
        changed |= self._cache.keep_only(resource, scope, listed, version)
        self._told_at[resource] = self._clock()
        return changed

    def _add_all(self, keys: Iterable[Key | None]) -> None:
        for key in keys:
            if key is not None and not self._synced.isdisjoint((None, key[0])):
                self._add(key)
