"""The operator is killed at every step it takes, one after the other: the next one comes to the same end.

A scenario is run once undisturbed, and then once for each of its writes: there the process dies, and a new one that
remembers nothing goes on. Between two writes nothing outside the process changes, so this is every line at which it
can die. Meanwhile controllers and a kubelet do their part. What the API server holds in the end has to be the same,
but for names given by chance, times, and the log of size changes, which may miss the one that was cut off.
"""

import asyncio
import json
import re
from collections.abc import Callable

import pytest

from hub_pools import NEXT_COMMIT
from memory_kube import MemoryKube
from memory_world import KEY, MAX_ROUNDS, World, empty_world, identity
from tidegate_operator.errors import Invalid
from tidegate_operator.reconcile import FRESH_NODES_SECONDS
from tidegate_operator.resources import DEPLOYMENT, EVENT
from tidegate_operator.world.nodes import NODES_TTL_SECONDS, NodeCache
from tidegate_operator.world.observed import Node

READS = ("get", "list", "loads", "rehearse")


class Killed(BaseException):
    """The process is gone: nothing of ours may catch it."""


def create(world: World) -> None:
    world.apply(replicas=2)


def grow(world: World) -> None:
    world.apply(replicas=3)


def shrink(world: World) -> None:
    world.apply(replicas=1)


def roll(world: World) -> None:
    world.apply(replicas=2, context={"max": 2048, "min": 1024})


def suspend(world: World) -> None:
    world.apply(replicas=2, suspend=True)


def damage(world: World) -> None:
    """Somebody deletes a child and scales the Deployment."""
    world.kube.drop(next(place for place in world.kube.objects if place[0].kind == "Service"))
    world.kube.store({**identity(world.kube.objects[DEPLOYMENT, *KEY]), "spec": {"replicas": 5}})


def cache(world: World) -> None:
    world.apply(replicas=1, model={"uri": "hf://Qwen/Qwen3-8B"}, cache={})


def revise(world: World) -> None:
    world.apply(replicas=1, model={"uri": "hf://Qwen/Qwen3-8B", "revision": NEXT_COMMIT}, cache={})


def forget(world: World) -> None:
    """The pool is served from the user's claim again: its cache goes."""
    world.apply(replicas=2)


@pytest.mark.parametrize("change", [create, grow, shrink, roll, suspend, damage])
def test_killed_at_any_line_it_comes_to_the_same_end(change: Callable[[World], None]) -> None:
    start = empty_world() if change is create else settled_world()
    change(start)
    assert_same_end(start)


@pytest.mark.parametrize("change", [cache, revise, forget])
def test_killed_while_a_model_is_fetched_it_comes_to_the_same_end(change: Callable[[World], None]) -> None:
    start = empty_world() if change is cache else settled_world(cache)
    change(start)
    assert_same_end(start)


def assert_same_end(start: World) -> None:
    """Undisturbed, and killed before each of its writes."""
    undisturbed = World(start.kube.copy())
    num_writes = count_writes(undisturbed)
    assert num_writes > 0
    assert_quiescent(undisturbed)
    wanted = state(undisturbed.kube)
    for number in range(num_writes):
        world = World(start.kube.copy())
        die_at(world, number)
        with pytest.raises(Killed):
            world.start().settle()
        world.kube.before = lambda _: None
        world.start().settle()
        assert state(world.kube) == wanted, f"killed at write {number} of {num_writes}"


def test_a_request_that_fails_anywhere_is_no_more_than_a_delay() -> None:
    """As a kill, but the process goes on with what it remembers."""
    start = empty_world()
    create(start)
    undisturbed = World(start.kube.copy())
    for number in range(count_writes(undisturbed)):
        world = World(start.kube.copy())
        process = world.start()
        die_at(world, number)
        with pytest.raises(Killed):
            process.settle()
        world.kube.before = lambda _: None
        process.settle()
        assert state(world.kube) == state(undisturbed.kube), f"refused at write {number}"


def test_a_second_run_without_any_word_from_a_watch_writes_nothing_twice() -> None:
    """Read your writes: the cache knows what we wrote before a watch tells."""
    world = empty_world()
    create(world)
    process = world.start()
    for _ in range(MAX_ROUNDS):
        world.kube.fill(process.cache)
        asyncio.run(process.reconcile())
        while True:  # no fill: watches are silent
            before = world.kube.num_writes, world.kube.version
            asyncio.run(process.reconcile())
            if world.kube.version == before[1]:
                assert world.kube.num_writes == before[0], "a write that changes nothing"
                break
        version = world.kube.version
        world.act()
        if world.kube.version == version:
            return
    raise AssertionError("it never rests")


class Looks(NodeCache):
    """How old what is known of nodes might be, look by look."""

    def __init__(self) -> None:
        super().__init__(MemoryKube(), is_allowed=False)
        self.max_ages: list[float] = []

    async def nodes(self, max_age_seconds: float = NODES_TTL_SECONDS) -> tuple[Node, ...] | None:
        self.max_ages.append(max_age_seconds)
        return None


def test_a_template_that_is_refused_again_and_again_makes_nobody_look_at_every_node_again() -> None:
    world = settled_world()
    process = world.start()
    looks = process.reconciler.nodes = Looks()
    roll(world)

    def refuse(call: str) -> None:
        if call == "rehearse":
            raise Invalid("a policy says no", 422)

    world.kube.before = refuse
    for _ in range(3):
        world.kube.fill(process.cache)
        asyncio.run(process.reconcile())
    assert looks.max_ages == [NODES_TTL_SECONDS] * 3

    world.kube.before = lambda _: None
    asyncio.run(process.reconcile())
    assert looks.max_ages[-1] == FRESH_NODES_SECONDS, "what is free now decides how the rollout goes"


def die_at(world: World, number: int) -> None:
    """Before that write."""
    left = number

    def count(call: str) -> None:
        nonlocal left
        left -= call not in READS
        if left < 0:
            raise Killed

    world.kube.before = count


def count_writes(world: World) -> int:
    calls: list[str] = []
    world.kube.before = calls.append
    world.start().settle()
    world.kube.before = lambda _: None
    return sum(call not in READS for call in calls)


def assert_quiescent(world: World) -> None:
    before = world.kube.version
    world.start().settle()
    assert world.kube.version == before


def settled_world(first: Callable[[World], None] = create) -> World:
    world = empty_world()
    first(world)
    world.start().settle()
    return world


def state(kube: MemoryKube) -> list[str]:
    """Everything there is but Events, without what chance or the clock gave."""
    found = []
    for (resource, _, _), item in kube.objects.items():
        if resource != EVENT:
            item.get("status", {}).pop("scalingHistory", None)
            item.get("status", {}).pop("scaler", None)
            text = json.dumps(item, sort_keys=True)
            for pattern in (r"uid-\d+", r"chat-\d+-\d+", r"2026-[-:T0-9]+(Z|\+00:00)", r'"resourceVersion": "\d+"',
                            r'"(generation|observedGeneration)": \d+'):  # fmt: skip
                text = re.sub(pattern, "*", text)
            found.append(text)
    return sorted(found)
