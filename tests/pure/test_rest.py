"""A pool at rest is not planned at every look, and nothing that time decides comes a look later for it.

Each scenario runs twice on the same clock, with an operator that may rest and with one to which every object is new at
every look. Both have to look at the same moments and to write the same at each.
"""

import asyncio
from collections.abc import Callable, Iterable
from datetime import timedelta
from itertools import count
from typing import Any, NamedTuple

import pytest

from memory_kube import MemoryKube
from memory_world import KEY, Engines, Process, empty_world, ended, identity, running
from pools import IDLE, pool_manifest
from tidegate_core.termination import ExitCode
from tidegate_operator.api.status import InferencePoolStatus
from tidegate_operator.control.metrics import Pools
from tidegate_operator.decisions.plan import START_POLL_SECONDS
from tidegate_operator.labels import ENGINE_ROLE, ROLE_LABEL
from tidegate_operator.resources import DEPLOYMENT, JOB, PERSISTENT_VOLUME_CLAIM, POD, POOL, Key, Manifest
from tidegate_operator.world.cached_kube import CachedKube
from tidegate_operator.world.observe import CLAIM_SECONDS, FREE_NAME_SECONDS
from tidegate_operator.world.observed import Pod
from tidegate_operator.world.scrape import Answers
from tidegate_operator.world.surroundings import Surroundings

RESYNC_SECONDS = 300.0
AT_ONCE_SECONDS = 1.0  # after something has changed


class Look(NamedTuple):
    """One run for the pool."""

    at: float
    seconds: float | None
    num_writes: int


class Told(Engines):
    """Engines that all say what they are told to."""

    def __init__(self, kube: MemoryKube) -> None:
        super().__init__(kube)
        self.report, self.is_silent = IDLE, False

    async def loads(self, pods: Iterable[Pod]) -> Answers:
        idle = await super().loads(pods)
        if self.is_silent:
            return Answers({}, dict.fromkeys(idle.loads, "no answer within 2 s"))
        said = {name: self.report.model_copy(update={"draining": each.draining}) for name, each in idle.loads.items()}
        return Answers(said, {})


class Counted(Pools):
    """How many statuses were made."""

    def __init__(self) -> None:
        super().__init__()
        self.num_made = 0

    def set(self, key: Key, status: InferencePoolStatus) -> None:
        super().set(key, status)
        self.num_made += 1


class Story:
    """A world with an operator, and what happened to the pool."""

    def __init__(self, *, may_rest: bool) -> None:
        self.world = empty_world()
        self.told = self.world.engines = Told(self.world.kube)
        self.process = Process(self.world)
        self.made = self.process.reconciler.pools = Counted()
        self.looks: list[Look] = []
        self.act: Callable[[], None] = self.world.act
        if not may_rest:
            numbers = count()
            self.process.reconciler.versions = lambda _: ((str(next(numbers)), 0),)

    def apply(self, **spec: Any) -> None:
        manifest = pool_manifest(**spec)
        self.world.kube.store({**manifest, "metadata": {"namespace": KEY[0], "name": KEY[1]}})

    def passes(self, seconds: float) -> None:
        """Time; what happens to an object is looked at soon, else the operator says when."""
        kube, end = self.world.kube, self.world.now + timedelta(seconds=seconds)
        while self.world.now < end:
            version, num_writes = kube.version, kube.num_writes
            kube.fill(self.process.cache)
            wanted = asyncio.run(self.process.reconcile())
            self.looks.append(Look(self.world.now.timestamp(), wanted, kube.num_writes - num_writes))
            self.act()
            wait = AT_ONCE_SECONDS if kube.version != version else min(wanted or RESYNC_SECONDS, RESYNC_SECONDS)
            self.world.now += timedelta(seconds=wait)

    @property
    def num_replicas(self) -> int:
        return int(self.world.kube.objects[DEPLOYMENT, *KEY]["spec"]["replicas"])

    def condition(self, kind: str) -> str:
        conditions = self.world.kube.objects[POOL, *KEY]["status"]["conditions"]
        return next((f"{each['status']} {each['reason']}" for each in conditions if each["type"] == kind), "")

    @property
    def pods(self) -> list[dict[str, Any]]:
        return [pod for pod in self.world.kube.of_kind(POD) if pod["metadata"]["labels"][ROLE_LABEL] == ENGINE_ROLE]


def a_drain_runs_out_of_time(story: Story) -> None:
    story.apply(replicas=2, scaling={"mode": "Manual"}, drain={"timeoutSeconds": 40})
    story.told.report = IDLE.model_copy(update={"running": 1})
    story.passes(60)
    story.apply(replicas=1, scaling={"mode": "Manual"}, drain={"timeoutSeconds": 40})
    story.passes(30)
    assert len(story.pods) == 2
    story.passes(20)
    assert len(story.pods) == 1


def load_comes_and_goes(story: Story) -> None:
    """Up at once; down after the hold, one by one."""
    story.apply(maxReplicas=3, scaling={"scaleDownHoldSeconds": 120})
    story.passes(300)
    story.told.report = IDLE.model_copy(update={"arrivals": 90, "running": 8, "waiting": 30, "eta_seconds": 60.0})
    story.passes(300)
    assert story.num_replicas == 3
    story.told.report = IDLE.model_copy(update={"arrivals": 90, "completions": 90})
    story.passes(100)
    assert story.num_replicas == 3
    story.passes(500)
    assert story.num_replicas == 1


def a_template_never_serves(story: Story) -> None:
    """Its deadline passes, and the last good one comes back."""
    story.apply(scaling={"mode": "Manual"}, rollout={"progressDeadlineSeconds": 200})
    story.passes(600)
    first = story.pods[0]["metadata"]["labels"]

    def act() -> None:
        story.world.act()
        for pod in story.pods:
            if pod["metadata"]["labels"] != first:
                story.world.kube.store({**identity(pod), "status": loading()})

    story.act = act
    story.apply(
        scaling={"mode": "Manual"}, rollout={"progressDeadlineSeconds": 200}, context={"max": 2048, "min": 1024}
    )
    story.passes(200)
    assert story.pods[0]["metadata"]["labels"] != first
    story.act = story.world.act
    story.passes(600)
    assert story.pods[0]["metadata"]["labels"] == first


def a_model_cannot_be_read(story: Story) -> None:
    """Tries come later and later, and all in their time."""

    def act() -> None:
        kube = story.world.kube
        for job in kube.of_kind(JOB):
            name, failed = f"{job['metadata']['name']}-x", ended("the volume is gone")
            failed["containerStatuses"][0]["state"]["terminated"] |= {
                "exitCode": int(ExitCode.MODEL_UNREACHABLE), "finishedAt": story.world.now.isoformat(),
            }  # fmt: skip
            if (POD, KEY[0], name) not in kube.objects:
                story.world._pod(name, job, failed, {"job-name": job["metadata"]["name"]})

    story.act = act
    story.apply(model={"uri": "pvc://models/qwen"})
    story.passes(1200)
    story.act = story.world.act
    story.passes(1200)


def a_pod_has_failed(story: Story) -> None:
    """It is kept as evidence for an hour."""
    story.apply(scaling={"mode": "Manual"})
    story.passes(600)
    (pod,) = story.pods
    at = (story.world.now - timedelta(minutes=50)).isoformat()
    failed = {"phase": "Failed", "reason": "Evicted", "conditions": [{"type": "Ready", "lastTransitionTime": at}]}
    story.act = lambda: None
    metadata = {**pod["metadata"], "name": "chat-old", "uid": "old"}
    story.world.kube.store({**identity(pod), "metadata": metadata, "status": failed})
    story.passes(500)
    assert len(story.pods) == 2
    story.passes(400)
    assert len(story.pods) == 1


def memory_was_short(story: Story) -> None:
    """What is advised goes when it has been calm for half an hour."""
    story.apply(maxReplicas=1)
    for number in range(50):
        story.told.report = IDLE.model_copy(update={"arrivals": number * 20, "preemptions": number * 2, "running": 2})
        story.passes(10)
    assert story.condition("ResizeAdvised").startswith("True")
    story.told.report = IDLE.model_copy(update={"arrivals": 1000, "preemptions": 100})
    story.passes(1500)
    assert story.condition("ResizeAdvised").startswith("True")
    story.passes(600)
    assert not story.condition("ResizeAdvised").startswith("True")


def an_engine_falls_silent(story: Story) -> None:
    story.apply(maxReplicas=2)
    story.passes(600)
    story.told.is_silent = True
    story.passes(300)
    assert story.condition("MetricsAvailable").startswith("False")
    story.told.is_silent = False
    story.passes(300)
    assert story.condition("MetricsAvailable").startswith("True")


def nothing_happens(story: Story) -> None:
    story.apply(maxReplicas=2)
    story.passes(3000)


def nobody_is_asked(story: Story) -> None:
    story.apply(suspend=True)
    story.passes(3600)
    story.apply(suspend=False)
    story.passes(600)
    story.apply(suspend=True)
    story.passes(3600)


STORIES = [
    a_drain_runs_out_of_time, load_comes_and_goes, a_template_never_serves, a_model_cannot_be_read, a_pod_has_failed,
    memory_was_short, an_engine_falls_silent, nothing_happens, nobody_is_asked,
]  # fmt: skip


@pytest.mark.parametrize("tell", STORIES)
def test_what_time_decides_comes_at_the_same_moment_for_a_pool_that_may_rest(tell: Callable[[Story], None]) -> None:
    resting, restless = Story(may_rest=True), Story(may_rest=False)
    tell(restless)
    tell(resting)
    assert resting.looks == restless.looks
    assert resting.world.kube.objects == restless.world.kube.objects
    assert resting.made.num_made <= restless.made.num_made


def test_a_pool_at_rest_is_not_planned_again() -> None:
    story = Story(may_rest=True)
    nothing_happens(story)
    before, looks = story.made.num_made, len(story.looks)
    story.passes(3600)
    assert len(story.looks) > looks
    assert story.made.num_made == before


def test_looks_at_an_idle_pool_come_half_as_often_each_time_and_at_once_when_a_request_came() -> None:
    story = Story(may_rest=True)
    story.apply(maxReplicas=2)
    story.passes(600)
    waits = [each.seconds for each in story.looks]
    assert waits[-1] == 60
    ready = next(number for number, seconds in enumerate(waits) if seconds == 5)
    assert waits[ready:][:5] == sorted(waits[ready:][:5])  # type: ignore[type-var]
    story.told.report = IDLE.model_copy(update={"arrivals": 1, "completions": 1})
    story.passes(1)
    assert story.looks[-1].seconds == 5


def test_a_pool_with_nothing_deployed_reads_next_to_nothing_of_the_api_server() -> None:
    story = Story(may_rest=True)
    story.apply(accelerator={"resource": "nvidia.com/gpu", "memory": "1Gi"})
    story.passes(60)
    assert story.condition("Fits").startswith("False")
    asked: list[str] = []
    story.world.kube.before = asked.append
    story.passes(3600)
    num_names, num_claims = 3 * 3600 / FREE_NAME_SECONDS, 3600 / CLAIM_SECONDS
    assert len(story.looks) > 3600 / START_POLL_SECONDS
    assert asked.count("get") <= num_names + num_claims


def test_whatever_changes_around_a_pool_at_rest_is_seen_by_the_next_look() -> None:
    story = Story(may_rest=True)
    nothing_happens(story)
    story.world.kube.drop((PERSISTENT_VOLUME_CLAIM, "team", "models"))
    fresh = CachedKube(story.world.kube, story.process.cache)  # whose minute is over
    story.process.reconciler.kube = fresh
    before = story.made.num_made
    story.passes(1)
    assert story.made.num_made == before + 1


def test_new_prices_are_seen_by_the_next_look(tmp_path: Any) -> None:
    story = Story(may_rest=True)
    file = tmp_path / "prices.yaml"
    story.process.reconciler.surroundings = Surroundings(story.process.reconciler.kube, ("team",), prices_file=file)
    nothing_happens(story)
    assert "cost" not in story.world.kube.objects[POOL, *KEY]["status"]
    file.write_text("nvidia.com/gpu: 2\n")
    before = story.made.num_made
    story.passes(1)
    assert story.made.num_made == before + 1


def loading() -> Manifest:
    """An engine that starts and starts."""
    status = running(0)
    since = status["conditions"][0]["lastTransitionTime"]
    conditions = [
        {"type": "Ready", "status": "False", "lastTransitionTime": since},
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-11-29T12:10:00Z"},
    ]
    status["containerStatuses"][0]["ready"] = False
    return {**status, "conditions": conditions}
