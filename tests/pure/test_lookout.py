"""The lookout: what a watch misses, a list finds; nothing is reconciled before everything of it is known."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from tidegate_operator.control.lookout import Lookout
from tidegate_operator.errors import Forbidden, NotFound, ServerFault
from tidegate_operator.kube import ApiServer, Page
from tidegate_operator.labels import POOL_LABEL
from tidegate_operator.resources import POD, POOL, Key, Manifest, Resource
from tidegate_operator.world.cache import CACHED, Cache
from waiting import eventually_async

A, B = ("team", "a"), ("team", "b")
ALL = (None,)


class Lists(ApiServer):
    """Serves lists of what it holds, one object a page."""

    def __init__(self) -> None:
        self.version = 10
        self.items: dict[Resource, dict[str, Manifest]] = {each: {} for each in CACHED}
        self.failing: dict[Resource, Exception] = {}
        self.asked: list[str | None] = []
        self.refused = ""  # a namespace

    @property
    def num_lists(self) -> int:
        return len(self.asked)

    def put(self, resource: Resource, name: str, pool: str = "") -> Manifest:
        self.version += 1
        metadata = {
            "namespace": "team", "name": name, "uid": f"uid of {name}", "resourceVersion": str(self.version),
            "labels": {POOL_LABEL: pool or name},
        }  # fmt: skip
        item = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata}
        self.items[resource][name] = item
        return item

    async def pages(
        self, resource: Resource, namespace: str | None, *, labels: str = "", fields: str = ""
    ) -> AsyncIterator[Page]:
        self.asked.append(namespace)
        if self.refused and namespace == self.refused:
            raise Forbidden("no rule")
        if error := self.failing.get(resource):
            raise error
        assert labels == ("" if resource == POOL else POOL_LABEL), "what is not ours is not asked for"
        yield Page((), self.version)
        for item in list(self.items[resource].values()):
            yield Page((item,), self.version)


def lookout(kube: Lists, added: list[Key], namespaces: tuple[str, ...] = ()) -> Lookout:
    return Lookout(kube, Cache(), added.append, namespaces=namespaces, resync_seconds=3600)


def taken(added: list[Key]) -> set[Key]:
    keys = set(added)
    added.clear()
    return keys


def test_at_first_every_pool_is_a_key_and_then_only_what_differs() -> None:
    async def scenario() -> None:
        kube, added = Lists(), list[Key]()
        watched = lookout(kube, added)
        for name in ("a", "b"):
            kube.put(POOL, name)
        assert await watched.relist(ALL) == ()
        assert taken(added) == {A, B}
        assert await watched.relist(ALL) == ()
        assert taken(added) == set()
        kube.put(POD, "pod", pool="b")
        assert await watched.relist(ALL) == ()
        assert taken(added) == {B}
        del kube.items[POD]["pod"]
        kube.version += 1
        assert await watched.relist(ALL) == ()
        assert taken(added) == {B}, "a deletion that no watch told of"

    asyncio.run(scenario())


def test_events_wake_nobody_before_everything_has_been_listed() -> None:
    async def scenario() -> None:
        kube, added = Lists(), list[Key]()
        watched = lookout(kube, added)
        pod = kube.put(POD, "pod", pool="a")
        kube.put(POOL, "a")
        watched.told(POD, "ADDED", pod)
        assert taken(added) == set()
        kube.failing[POD] = ServerFault("busy")
        assert await watched.relist(ALL) == ALL
        assert taken(added) == set()
        kube.failing.clear()
        assert await watched.relist(ALL) == ()
        assert taken(added) == {A}
        watched.told(POD, "MODIFIED", kube.put(POD, "pod", pool="a"))
        assert taken(added) == {A}

    asyncio.run(scenario())


def test_what_a_watch_lists_again_wakes_nobody_but_is_followed_by_a_list_of_our_own() -> None:
    async def scenario() -> None:
        kube, added = Lists(), list[Key]()
        watched = lookout(kube, added)
        pool = kube.put(POOL, "a")
        starts: list[None] = []
        loop = asyncio.create_task(watched.run(lambda: starts.append(None)))
        await eventually_async(lambda: kube.num_lists == len(CACHED) and bool(starts))
        taken(added)
        watched.told(POOL, None, pool)
        assert taken(added) == set()
        await eventually_async(lambda: kube.num_lists == 2 * len(CACHED))
        loop.cancel()
        await asyncio.gather(loop, return_exceptions=True)

    asyncio.run(scenario())


def test_whoever_begins_to_lead_looks_at_everything_anew_before_any_key() -> None:
    async def scenario() -> None:
        kube, added = Lists(), list[Key]()
        watched = lookout(kube, added)
        pool = kube.put(POOL, "a")
        loop = asyncio.create_task(watched.run(lambda: None))
        await eventually_async(lambda: taken(added) == {A})
        watched.begin_anew()
        watched.told(POOL, "MODIFIED", pool)
        assert taken(added) == set()
        await eventually_async(lambda: taken(added) == {A})
        loop.cancel()
        await asyncio.gather(loop, return_exceptions=True)

    asyncio.run(scenario())


def test_a_namespace_that_cannot_be_read_is_asked_again_alone_and_holds_up_nobody() -> None:
    async def scenario() -> None:
        kube, added = Lists(), list[Key]()
        kube.put(POOL, "a")
        kube.refused = "gone"
        watched = lookout(kube, added, namespaces=("team", "gone"))
        loop = asyncio.create_task(watched.run(lambda: None))
        await eventually_async(lambda: taken(added) == {A})
        listed = kube.num_lists
        await eventually_async(lambda: kube.num_lists > listed)
        assert kube.asked[listed:] == ["gone"]
        loop.cancel()
        await asyncio.gather(loop, return_exceptions=True)

    asyncio.run(scenario())


def test_without_the_resource_nothing_is_watched() -> None:
    async def scenario() -> None:
        kube = Lists()
        watched = lookout(kube, [])
        kube.failing[POOL] = NotFound("no such resource")
        starts: list[None] = []
        loop = asyncio.create_task(watched.run(lambda: starts.append(None)))
        await eventually_async(lambda: kube.num_lists > 1)
        assert not starts
        assert not watched.is_synced
        del kube.failing[POOL]
        await eventually_async(lambda: bool(starts))
        assert watched.is_synced
        loop.cancel()
        await asyncio.gather(loop, return_exceptions=True)

    asyncio.run(scenario())


def test_the_age_of_a_kind_counts_from_what_was_heard_last() -> None:
    async def scenario() -> None:
        now = 100.0
        kube = Lists()
        watched = Lookout(kube, Cache(), print, namespaces=(), resync_seconds=3600, clock=lambda: now)
        await watched.relist(ALL)
        now = 107.0
        watched.told(POD, "ADDED", kube.put(POD, "pod", pool="a"))
        ages: dict[Any, float] = dict(watched.ages())
        assert (ages[POD], ages[POOL]) == (0.0, 7.0)

    asyncio.run(scenario())
