"""The operator is killed at every step it takes, one after the other: the next one comes to the same end.

A scenario is run once undisturbed, and then once for each of its writes: there the process dies, and a new one that
remembers nothing goes on. Between two writes nothing outside the process changes, so this is every line at which it
can die. Meanwhile controllers and a kubelet do their part. What the API server holds in the end has to be the same,
but for names given by chance, times, and the log of size changes, which may miss the one that was cut off.
"""

import asyncio
import json
import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from hub_pools import COMMIT, NEXT_COMMIT, found
from memory_kube import MemoryKube
from pools import IDLE, SETTINGS, pool_manifest
from shapes import shape_of
from tidegate_operator.cache import Cache
from tidegate_operator.cached_kube import CachedKube
from tidegate_operator.errors import Invalid
from tidegate_operator.events import EventRecorder
from tidegate_operator.manifests.labels import DELETION_COST_ANNOTATION, ENGINE_ROLE, ROLE_LABEL, TEMPLATE_LABEL
from tidegate_operator.metrics import Pools
from tidegate_operator.nodes import NODES_TTL_SECONDS, NodeCache
from tidegate_operator.observed import Node, Pod
from tidegate_operator.pool_metrics import PoolMetrics
from tidegate_operator.quotas import QuotaCache
from tidegate_operator.reconcile import FRESH_NODES_SECONDS, Reconciler
from tidegate_operator.resources import DEPLOYMENT, EVENT, JOB, PERSISTENT_VOLUME_CLAIM, POD, POOL, Manifest
from tidegate_operator.scrape import Answers
from tidegate_operator.surroundings import Surroundings

KEY = ("team", "chat")
NOWHERE = Path("/nowhere")
MAX_ROUNDS = 40
READS = ("get", "list", "loads", "rehearse")


class Killed(BaseException):
    """The process is gone: nothing of ours may catch it."""


class Engines:
    """All of them idle; drains are remembered by address."""

    def __init__(self, kube: MemoryKube) -> None:
        self.kube = kube
        self.draining: set[str] = set()

    async def loads(self, pods: Iterable[Pod]) -> Answers:
        self.kube.before("loads")
        asked = [pod for pod in pods if pod.is_running and not pod.is_terminating]
        loads = {pod.name: IDLE.model_copy(update={"draining": pod.ip in self.draining}) for pod in asked}
        return Answers(loads=loads, failures={})

    async def set_draining(self, pod: Pod, *, is_draining: bool) -> None:
        self.kube.before("drain")
        assert pod.ip is not None
        (self.draining.add if is_draining else self.draining.discard)(pod.ip)


class World:
    """A namespace with its controllers, its clock, and operators that come and go."""

    def __init__(self, kube: MemoryKube) -> None:
        self.kube = kube
        self.engines = Engines(kube)
        self.now = datetime(2026, 11, 29, 12, tzinfo=UTC)

    def apply(self, **spec: Any) -> None:
        manifest = pool_manifest(scaling={"mode": "Manual"}, drain={"timeoutSeconds": 1}, **spec)
        self.kube.store({**manifest, "metadata": {"namespace": "team", "name": "chat"}})

    def start(self) -> "Process":
        return Process(self)

    def act(self) -> None:
        """What controllers and the kubelet do next."""
        for job in self.kube.of_kind(JOB):
            name = job["metadata"]["name"]
            self._pod(f"{name}-x", job, ended(last_words(job)), {"job-name": name})
        for deployment in self.kube.of_kind(DEPLOYMENT):
            self._roll(deployment)

    def _roll(self, deployment: Manifest) -> None:
        """New pods at once, then old and surplus ones go, cheapest first."""
        wanted, template = deployment["spec"]["replicas"], deployment["spec"]["template"]
        pods = [pod for pod in self.kube.of_kind(POD) if pod["metadata"]["labels"][ROLE_LABEL] == ENGINE_ROLE]
        current = [pod for pod in pods if is_made_from(pod, template)]
        old = [pod for pod in pods if pod not in current]
        surplus = sorted(current, key=deletion_cost)[: max(0, len(current) - wanted)]
        for pod in [*old, *surplus]:
            self.kube.drop((POD, "team", pod["metadata"]["name"]))
        for number in range(len(current), wanted):
            name = f"chat-{self.kube.version}-{number}"
            self._pod(
                name,
                {"kind": "ReplicaSet", "metadata": {"name": "rs", "uid": "rs"}},
                running(number),
                template["metadata"]["labels"],
            )
        generation = self.kube.objects[DEPLOYMENT, *KEY]["metadata"]["generation"]
        counts = {"replicas": wanted, "updatedReplicas": wanted, "readyReplicas": wanted, "availableReplicas": wanted}
        self.kube.store({**identity(deployment), "status": {"observedGeneration": generation, **counts}})

    def _pod(self, name: str, owner: Manifest, status: Manifest, labels: Manifest) -> None:
        template = owner.get("spec", {}).get("template", {}).get("metadata", {}).get("labels", {})
        reference = {
            "kind": owner["kind"],
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
            "controller": True,
        }
        metadata = {"namespace": "team", "name": name, "labels": {**template, **labels}, "ownerReferences": [reference]}
        self.kube.store({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": status})


class Process:
    """One life of the operator: what it remembers dies with it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.cache = Cache()
        kube = CachedKube(world.kube, self.cache)
        self.reconciler = Reconciler(
            kube=kube,
            engines=world.engines,
            nodes=NodeCache(kube, is_allowed=False),
            quotas=QuotaCache(kube, ("team",)),
            recorder=EventRecorder(kube, "operator"),
            settings=lambda: SETTINGS,
            clock=lambda: world.now,
            pools=Pools(),
            details=PoolMetrics(CollectorRegistry()),
            surroundings=Surroundings(kube, ("team",), prices_file=NOWHERE),
        )

    def settle(self) -> None:
        """Rounds until nothing is written any more, by us or by anybody."""
        for _ in range(MAX_ROUNDS):
            before = self.world.kube.version
            self.world.kube.fill(self.cache)
            asyncio.run(self._reconcile())
            self.world.act()
            self.world.now += timedelta(seconds=2)
            if self.world.kube.version == before:
                return
        raise AssertionError(f"it never rests: {self.world.kube.objects[POOL, *KEY]['status']['conditions']}")

    async def _reconcile(self) -> None:
        await self.reconciler(KEY)


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
        asyncio.run(process._reconcile())
        while True:  # no fill: watches are silent
            before = world.kube.num_writes, world.kube.version
            asyncio.run(process._reconcile())
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
        asyncio.run(process._reconcile())
    assert looks.max_ages == [NODES_TTL_SECONDS] * 3

    world.kube.before = lambda _: None
    asyncio.run(process._reconcile())
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


def empty_world() -> World:
    world = World(MemoryKube())
    world.kube.store(
        {"apiVersion": "v1", "kind": PERSISTENT_VOLUME_CLAIM.kind, "metadata": {"namespace": "team", "name": "models"}}
    )
    return world


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


def identity(item: Manifest) -> dict[str, Any]:
    return {
        "apiVersion": item["apiVersion"], "kind": item["kind"],
        "metadata": {"namespace": item["metadata"]["namespace"], "name": item["metadata"]["name"]},
    }  # fmt: skip


def is_made_from(pod: Manifest, template: Manifest) -> bool:
    return bool(pod["metadata"]["labels"].get(TEMPLATE_LABEL) == template["metadata"]["labels"].get(TEMPLATE_LABEL))


def deletion_cost(pod: Manifest) -> int:
    return int(pod["metadata"].get("annotations", {}).get(DELETION_COST_ANNOTATION, "0"))


def last_words(job: Manifest) -> str:
    """What the Job's pod answers: what it fetched, or what it found."""
    arguments = job["spec"]["template"]["spec"]["containers"][0]["args"]
    if arguments[0] == "download":
        return f"Qwen/Qwen3-8B@{arguments[arguments.index('--revision') + 1]}"
    if arguments[1].startswith("hf://"):
        return found(NEXT_COMMIT if NEXT_COMMIT in arguments else COMMIT)
    return shape_of().to_json()


def ended(message: str) -> dict[str, Any]:
    state = {
        "terminated": {"exitCode": 0, "message": message, "reason": "Completed", "finishedAt": "2026-11-29T11:00:00Z"}
    }
    return {"phase": "Succeeded", "containerStatuses": [{"name": "engine", "ready": False, "state": state}]}


def running(number: int) -> dict[str, Any]:
    since = "2026-11-29T11:00:00Z"
    return {
        "phase": "Running", "podIP": f"10.0.0.{number}",
        "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": since}],
        "containerStatuses": [{"name": "engine", "ready": True, "state": {"running": {"startedAt": since}}}],
    }  # fmt: skip
