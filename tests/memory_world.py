"""A namespace in memory with its controllers and its clock, and operators that live and die in it. For pure tests."""

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from hub_pools import COMMIT, NEXT_COMMIT, found
from memory_kube import MemoryKube
from pools import IDLE, SETTINGS, pool_manifest
from shapes import shape_of
from tidegate_operator.control.metrics import Pools
from tidegate_operator.labels import DELETION_COST_ANNOTATION, ENGINE_ROLE, ROLE_LABEL, TEMPLATE_LABEL
from tidegate_operator.reconcile import Reconciler
from tidegate_operator.report.events import EventRecorder
from tidegate_operator.report.pool_metrics import PoolMetrics
from tidegate_operator.resources import DEPLOYMENT, JOB, PERSISTENT_VOLUME_CLAIM, POD, POOL, Manifest
from tidegate_operator.world.cache import Cache
from tidegate_operator.world.cached_kube import CachedKube
from tidegate_operator.world.nodes import NodeCache
from tidegate_operator.world.observed import Pod
from tidegate_operator.world.quotas import QuotaCache
from tidegate_operator.world.scrape import Answers
from tidegate_operator.world.surroundings import Surroundings

KEY = ("team", "chat")
NOWHERE = Path("/nowhere")
MAX_ROUNDS = 40


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

    def seconds(self) -> float:
        """Its clock."""
        return self.now.timestamp()

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
        kube = CachedKube(world.kube, self.cache, clock=world.seconds)
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
            versions=kube.versions,
        )

    def settle(self) -> None:
        """Rounds until nothing is written any more, by us or by anybody."""
        for _ in range(MAX_ROUNDS):
            before = self.world.kube.version
            self.world.kube.fill(self.cache)
            asyncio.run(self.reconcile())
            self.world.act()
            self.world.now += timedelta(seconds=2)
            if self.world.kube.version == before:
                return
        raise AssertionError(f"it never rests: {self.world.kube.objects[POOL, *KEY]['status']['conditions']}")

    async def reconcile(self) -> float | None:
        """Seconds until the operator wants to look again."""
        return await self.reconciler(KEY)


def empty_world() -> World:
    world = World(MemoryKube())
    world.kube.store(
        {"apiVersion": "v1", "kind": PERSISTENT_VOLUME_CLAIM.kind, "metadata": {"namespace": "team", "name": "models"}}
    )
    return world


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
