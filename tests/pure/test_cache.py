"""The cache: whatever the order in which watches, lists and our own writes tell of an object, the newest counts."""

import asyncio
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate_operator.control.election import Elector
from tidegate_operator.errors import NotLeading
from tidegate_operator.kube import ApiServer
from tidegate_operator.labels import POOL_LABEL
from tidegate_operator.resources import DEPLOYMENT, EVENT, JOB, PERSISTENT_VOLUME_CLAIM, POD, POOL, Manifest, Resource
from tidegate_operator.world.cache import Cache, pool_key
from tidegate_operator.world.cached_kube import CachedKube
from tidegate_operator.world.lookups import MAX_KEPT, LookUps
from tidegate_operator.world.observe import is_scaled_by_others


def item(name: str, version: int, *, uid: str = "", pool: str = "chat", resource: Resource = POD) -> dict[str, Any]:
    metadata = {
        "namespace": "team", "name": name, "uid": uid or f"uid of {name}", "resourceVersion": str(version),
        "labels": {POOL_LABEL: pool},
    }  # fmt: skip
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata}


def names(cache: Cache, pool: str = "chat") -> list[str]:
    return [each["metadata"]["name"] for each in cache.of_pool(POD, "team", pool)]


def test_an_older_state_never_replaces_a_newer_one() -> None:
    cache = Cache()
    assert cache.put(POD, item("a", 5))
    assert not cache.put(POD, item("a", 4))
    assert not cache.put(POD, item("a", 5)), "the echo of a write is no news"
    (found,) = cache.of_pool(POD, "team", "chat")
    assert found["metadata"]["resourceVersion"] == "5"


def test_an_answer_that_arrives_after_the_deletion_brings_nothing_back() -> None:
    cache = Cache()
    cache.put(POD, item("a", 5))
    assert cache.remove(POD, item("a", 9))
    assert not cache.put(POD, item("a", 7))
    assert names(cache) == []
    assert cache.put(POD, item("a", 10)), "it has our label again"


def test_the_end_of_an_object_is_not_that_of_another_one_under_its_name() -> None:
    cache = Cache()
    cache.put(POD, item("a", 8, uid="new"))
    assert not cache.remove(POD, item("a", 7, uid="old"))
    assert names(cache) == ["a"]


def test_a_list_takes_what_was_deleted_unseen_and_spares_what_is_younger_than_itself() -> None:
    cache = Cache()
    for name, version in (("here", 3), ("gone", 4), ("young", 12)):
        cache.put(POD, item(name, version))
    assert cache.keep_only(POD, "team", {("team", "here")}, 10) == {("team", "chat")}
    assert names(cache) == ["here", "young"]
    assert cache.keep_only(POD, "other", set(), 99) == set(), "another namespace's list says nothing of this one"


def test_an_object_that_moves_to_another_pool_leaves_the_first() -> None:
    cache = Cache()
    cache.put(POD, item("a", 1))
    cache.put(POD, item("a", 2, pool="other"))
    assert (names(cache), names(cache, "other")) == ([], ["a"])


def test_what_a_reader_changes_changes_nothing_for_the_next() -> None:
    cache = Cache()
    cache.put(POD, item("a", 1))
    first = cache.get(POD, "team", "a")
    assert isinstance(first, dict)
    first["metadata"].clear()
    assert cache.get(POD, "team", "a") == item("a", 1)


def test_a_label_that_names_no_pool_is_no_key() -> None:
    assert pool_key(POD, item("a", 1, pool="")) is None
    assert pool_key(POD, item("a", 1)) == ("team", "chat")
    assert pool_key(POOL, item("a", 1, pool="")) == ("team", "a")


@pytest.mark.parametrize("subresource", ["", "scale"])
def test_of_managed_fields_only_those_stay_that_say_who_scales(subresource: str) -> None:
    scales = {"manager": "kubectl", "subresource": subresource, "fieldsV1": {"f:spec": {"f:replicas": {}}}}
    other = {"manager": "user", "fieldsV1": {"f:spec": {"f:model": {}}}}
    pool = {**item("a", 1, resource=POOL), "spec": {"replicas": 3}}
    pool["metadata"]["managedFields"] = [other, scales]
    pod = item("p", 1)
    pod["metadata"]["managedFields"] = [other]
    cache = Cache()
    cache.put(POOL, pool)
    cache.put(POD, pod)
    found = cache.get(POOL, "team", "a")
    assert found is not None
    assert found["metadata"]["managedFields"] == [scales]
    assert is_scaled_by_others(found) is is_scaled_by_others(pool) is (subresource == "scale")
    assert "managedFields" not in cache.of_pool(POD, "team", "chat")[0]["metadata"]


STEPS = st.lists(st.tuples(st.sampled_from(["write", "delete"]), st.sampled_from("abc")), min_size=1, max_size=25)


@given(STEPS, st.integers(0, 2**32))
def test_in_any_order_it_comes_to_what_the_api_server_has(steps: list[tuple[str, str]], seed: int) -> None:
    """A server's history, told as events in any order, some twice, with one list somewhere in between."""
    server: dict[str, dict[str, Any]] = {}
    told: list[tuple[str, dict[str, Any]]] = []
    for version, (action, name) in enumerate(steps, start=1):
        if action == "write":
            uid = server[name]["metadata"]["uid"] if name in server else f"{name}{version}"
            server[name] = item(name, version, uid=uid)
            told.append(("MODIFIED", server[name]))
        elif name in server:
            uid = server.pop(name)["metadata"]["uid"]
            told.append(("DELETED", item(name, version, uid=uid)))
    rng = random.Random(seed)
    told += rng.sample(told, len(told) // 2)
    rng.shuffle(told)
    cache = Cache()
    for kind, each in told:
        (cache.remove if kind == "DELETED" else cache.put)(POD, each)
    for each in server.values():
        cache.put(POD, each)
    cache.keep_only(POD, None, {("team", name) for name in server}, len(steps))
    assert list(cache.of_pool(POD, "team", "chat")) == [server[name] for name in sorted(server)]


class Answering(ApiServer):
    """Answers every write with what is wanted, one version later; counts reads."""

    def __init__(self) -> None:
        self.version = 100
        self.num_reads = 0
        self.left: Manifest | None = None

    async def get(self, *_: object) -> None:
        self.num_reads += 1

    async def apply(self, manifest: Manifest, *, is_rehearsal: bool = False) -> Manifest:
        self.version += 1
        metadata = {**manifest["metadata"], "resourceVersion": str(self.version), "uid": "given"}
        return {**manifest, "metadata": metadata}

    async def delete(self, *_: object) -> Manifest | None:
        return self.left

    async def create(self, manifest: Manifest) -> Manifest:
        return manifest


def wanted(name: str = "chat") -> dict[str, Any]:
    found = item(name, 1, resource=DEPLOYMENT)
    for field in ("uid", "resourceVersion"):
        del found["metadata"][field]
    return found


def test_a_read_after_our_own_write_has_it_and_a_rehearsal_leaves_nothing() -> None:
    async def scenario() -> None:
        kube, cache = Answering(), Cache()
        cached = CachedKube(kube, cache)
        await cached.apply(wanted(), is_rehearsal=True)
        assert await cached.list(DEPLOYMENT, "team", labels=f"{POOL_LABEL}=chat") == ()
        await cached.apply(wanted())
        (found,) = await cached.list(DEPLOYMENT, "team", labels=f"{POOL_LABEL}=chat")
        assert found["metadata"]["uid"] == "given"
        assert await cached.get(DEPLOYMENT, "team", "chat") == found
        assert kube.num_reads == 0

    asyncio.run(scenario())


def test_a_deleted_object_is_gone_at_once_unless_finalizers_hold_it() -> None:
    async def scenario() -> None:
        kube, cache = Answering(), Cache()
        cached = CachedKube(kube, cache)
        for name in ("held", "free"):
            cache.put(JOB, item(name, 5, resource=JOB))
        await cached.delete(JOB, "team", "free", "uid of free")
        kube.left = item("held", 6, resource=JOB)
        kube.left["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        await cached.delete(JOB, "team", "held", "uid of held")
        (left,) = cache.of_pool(JOB, "team", "chat")
        assert left == kube.left

    asyncio.run(scenario())


def test_a_stranger_under_a_childs_name_is_looked_for_and_a_pool_is_not() -> None:
    async def scenario() -> None:
        kube = Answering()
        cached = CachedKube(kube, Cache())
        assert await cached.get(DEPLOYMENT, "team", "chat") is None
        assert kube.num_reads == 1
        assert await cached.get(POOL, "team", "chat") is None
        assert kube.num_reads == 1

    asyncio.run(scenario())


class Strange(ApiServer):
    """Objects without a label of ours, by name; reads are counted."""

    def __init__(self) -> None:
        self.stored: dict[str, Manifest] = {}
        self.num_reads = 0

    async def get(
        self, resource: Resource, namespace: str | None, name: str, *, max_age_seconds: float = 0.0
    ) -> Manifest | None:
        self.num_reads += 1
        return self.stored.get(name)


def unlabelled(name: str, resource: Resource) -> Manifest:
    found = item(name, 7, resource=resource)
    return {**found, "metadata": {**found["metadata"], "labels": {}}}


def test_what_seldom_ends_is_asked_for_once_in_a_while_and_everything_else_anew() -> None:
    async def scenario() -> None:
        now, kube = 0.0, Strange()
        cached = CachedKube(kube, Cache(), clock=lambda: now)

        async def look(resource: Resource, name: str) -> Manifest | None:
            return await cached.get(resource, "team", name, max_age_seconds=60.0)

        kube.stored["models"] = unlabelled("models", PERSISTENT_VOLUME_CLAIM)
        for _ in range(5):
            assert await look(DEPLOYMENT, "chat") is None
            assert await look(PERSISTENT_VOLUME_CLAIM, "models") == kube.stored["models"]
        assert kube.num_reads == 2
        now = 61.0
        await look(DEPLOYMENT, "chat")
        assert kube.num_reads == 3

        kube.stored["chat"] = unlabelled("chat", DEPLOYMENT)
        assert await cached.get(DEPLOYMENT, "team", "chat") == kube.stored["chat"], "before a write"
        assert await look(DEPLOYMENT, "chat") == kube.stored["chat"], "what it found is known from then on"
        del kube.stored["chat"], kube.stored["models"]
        assert await look(DEPLOYMENT, "chat") is None, "who waits for a name is not kept waiting"
        now = 122.0
        assert await look(PERSISTENT_VOLUME_CLAIM, "models") is None
        kube.stored["models"] = unlabelled("models", PERSISTENT_VOLUME_CLAIM)
        assert await look(PERSISTENT_VOLUME_CLAIM, "models") is not None, "nor who waits for a claim"

    asyncio.run(scenario())


def test_answers_about_pools_that_are_gone_do_not_pile_up() -> None:
    look_ups = LookUps(clock=lambda: 0.0)
    for number in range(MAX_KEPT + 10):
        look_ups.learn((DEPLOYMENT, "team", f"chat-{number}"), None)
    assert len(look_ups) == MAX_KEPT
    assert look_ups.find((DEPLOYMENT, "team", "chat-0"), 60.0) is None
    assert look_ups.find((DEPLOYMENT, "team", f"chat-{MAX_KEPT}"), 60.0) is not None


def test_whoever_does_not_lead_writes_nothing() -> None:
    async def scenario() -> None:
        elector = Elector(Answering(), "tidegate-system", "operator", "never-elected")
        cached = CachedKube(Answering(), Cache(), before_write=elector.require)
        for write in (
            cached.apply(wanted()),
            cached.apply(wanted(), is_rehearsal=True),
            cached.patch(POD, "team", "x", {}),
            cached.patch_status(item("x", 1, resource=POOL)),
            cached.delete(POD, "team", "x", "uid"),
            cached.create({**item("x", 1), "kind": EVENT.kind}),
        ):
            with pytest.raises(NotLeading):
                await write

    asyncio.run(scenario())
