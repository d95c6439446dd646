"""Nodes and their devices: which a pool may use, what is free on each, and what live pods have taken."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from pools import NOW, SETTINGS, cpu_pool_manifest, pod, pool, settled, stored
from tidegate_operator.api.conditions import ConditionType
from tidegate_operator.api.reasons import Reason
from tidegate_operator.decisions.planning import plan
from tidegate_operator.errors import Forbidden, ServerFault
from tidegate_operator.kube import ApiServer, Page
from tidegate_operator.report.status import status
from tidegate_operator.resources import NODE, Manifest, Resource
from tidegate_operator.sizing.capacity import candidates, free_accelerators, largest_node, shortage
from tidegate_operator.world.nodes import NODES_TTL_SECONDS, NodeCache, used_devices
from tidegate_operator.world.observed import Node, Taint, Trouble
from tidegate_operator.world.readers import read_node

GPU = "nvidia.com/gpu"


def node(name: str = "a", devices: str = "4", used: str = "0", **facts: Any) -> Node:
    return Node(name, facts.pop("labels", {}), {GPU: devices, "cpu": "64"}, {GPU: used}, **facts)


def names(nodes: tuple[Node, ...]) -> list[str]:
    return [each.name for each in nodes]


def test_a_candidate_has_the_device_and_the_labels_that_the_pool_asks_for() -> None:
    nodes = (node("a", labels={"tier": "big"}), node("b"), node("c", devices="0", labels={"tier": "big"}))
    assert names(candidates(pool(), nodes)) == ["a", "b"]
    assert names(candidates(pool(pod={"nodeSelector": {"tier": "big"}}), nodes)) == ["a"]


@pytest.mark.parametrize(
    ("taint", "toleration", "is_borne"),
    [
        (Taint("team", "x", "NoSchedule"), None, False),
        (Taint("team", "x", "NoExecute"), None, False),
        (Taint("team", "x", "PreferNoSchedule"), None, True),
        (Taint(GPU, "present", "NoSchedule"), None, True),  # the device's own
        (Taint("team", "x", "NoSchedule"), {"key": "team", "value": "x"}, True),
        (Taint("team", "x", "NoSchedule"), {"key": "team", "value": "y"}, False),
        (Taint("team", "", "NoSchedule"), {"key": "team", "operator": "Equal"}, True),
        (Taint("team", "x", "NoSchedule"), {"key": "team", "operator": "Exists", "effect": "NoSchedule"}, True),
        (Taint("team", "x", "NoExecute"), {"key": "team", "operator": "Exists", "effect": "NoSchedule"}, False),
        (Taint("team", "x", "NoExecute"), {"operator": "Exists"}, True),
    ],
)
def test_a_taint_keeps_off_whom_the_scheduler_would_keep_off(
    taint: Taint, toleration: dict[str, str] | None, is_borne: bool
) -> None:
    subject = pool(pod={"tolerations": [toleration] if toleration else []})
    assert bool(candidates(subject, (node(taints=(taint,)),))) is is_borne


@pytest.mark.parametrize(
    ("expressions", "expected"),
    [
        ([{"key": "tier", "operator": "In", "values": ["big", "huge"]}], ["a"]),
        ([{"key": "tier", "operator": "NotIn", "values": ["big"]}], ["b"]),
        ([{"key": "tier", "operator": "Exists"}], ["a"]),
        ([{"key": "tier", "operator": "DoesNotExist"}], ["b"]),
        ([{"key": "cores", "operator": "Gt", "values": ["8"]}], ["b"]),
        ([{"key": "cores", "operator": "Lt", "values": ["8"]}], []),
        ([{"key": "cores", "operator": "Gt", "values": ["many"]}], []),
        ([], []),
    ],
)
def test_required_affinity_to_nodes_counts_as_it_does_for_the_scheduler(
    expressions: list[dict[str, Any]], expected: list[str]
) -> None:
    nodes = (node("a", labels={"tier": "big", "cores": "8"}), node("b", labels={"cores": "16"}))
    named = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["c"]}]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": expressions}, named]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
    subject = pool(pod={"affinity": {"nodeAffinity": required}})
    assert names(candidates(subject, (*nodes, node("c")))) == [*expected, "c"]


def test_a_cpu_pool_does_not_bear_the_taint_of_a_device() -> None:
    tainted = node(taints=(Taint(GPU, "present", "NoSchedule"),))
    assert candidates(stored(cpu_pool_manifest()), (tainted, node("b"))) == (node("b"),)


def test_free_devices_are_those_that_no_live_pod_has_asked_for() -> None:
    nodes = (node("a", used="3"), node("b", used="5"), node("c", is_schedulable=False), Node("d", {}, {}))
    assert free_accelerators(nodes, GPU) == {"a": 1, "b": 0, "c": 0, "d": 0}
    assert (largest_node(nodes, GPU), largest_node((), GPU)) == (4, 0)


def test_two_devices_on_two_nodes_are_none_for_a_replica_that_needs_two() -> None:
    nodes = (node("a", used="3"), node("b", used="3"))
    assert shortage(nodes, GPU, 1) == ""
    assert shortage(nodes, GPU, 2) == (
        "fits nowhere now: a replica needs 2 nvidia.com/gpu on one node, largest contiguous = 1, 2 free on 2 nodes"
    )


def test_a_replica_that_finds_no_node_says_beside_the_schedulers_words_what_is_free_where() -> None:
    waiting = pod(ready_since=None, is_running=False, trouble=Trouble(Reason.UNSCHEDULABLE, "0/2 nodes are available"))
    full = (node("a", used="4"), node("b", used="4"))
    observed = replace(settled(), pods=(waiting,), nodes=full)
    progressing = status(pool(), observed, plan(pool(), observed, SETTINGS, NOW), (), NOW).condition(
        ConditionType.PROGRESSING
    )
    assert progressing is not None
    assert progressing.message == (
        "0/2 nodes are available; fits nowhere now: a replica needs 1 nvidia.com/gpu on one node, "
        "largest contiguous = 0, 0 free on 2 nodes"
    )


def test_a_cordoned_or_unready_node_takes_no_pod_now_and_stays_a_candidate() -> None:
    def read(**spec: Any) -> Node:
        manifest = {"metadata": {"name": "a"}, "spec": spec, "status": {"allocatable": {GPU: "1"}}}
        return read_node(manifest)

    unready = read(taints=[{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}])
    cordoned = read(unschedulable=True, taints=[{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}])
    tainted = read(taints=[{"key": "team", "value": "x", "effect": "NoSchedule"}])
    assert [each.is_schedulable for each in (read(), unready, cordoned, tainted)] == [True, False, False, True]
    assert (cordoned.is_cordoned, unready.is_cordoned) == (True, False)
    assert len(candidates(pool(), (read(), unready, cordoned, tainted))) == 3


def asks(count: int, **spec: Any) -> Manifest:
    container = {"resources": {"requests": {GPU: str(count), "cpu": "4"}, "limits": {GPU: str(count)}}}
    return {"metadata": {}, "spec": {"containers": [container], **spec}, "status": {"phase": "Running"}}


def test_a_pod_takes_what_its_containers_and_sidecars_ask_for_together_or_one_init_container_alone() -> None:
    def init(count: int, **facts: str) -> Manifest:
        return {"resources": {"limits": {GPU: str(count)}}, **facts}

    ended = asks(8) | {"status": {"phase": "Failed"}}
    assert used_devices([asks(1), asks(2), ended]) == {GPU: "3"}
    assert used_devices([asks(1, initContainers=[init(4), init(2)])]) == {GPU: "4"}
    assert used_devices([asks(1, initContainers=[init(1, restartPolicy="Always")])]) == {GPU: "2"}
    assert used_devices([{"metadata": {}, "spec": {"containers": [{}]}}]) == {}


class Cluster(ApiServer):
    """Two nodes, one with devices; each list is written down."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.fault: Exception | None = None

    async def list(
        self, resource: Resource, namespace: str | None, *, labels: str = "", fields: str = ""
    ) -> tuple[Manifest, ...]:
        self.asked.append(f"{resource.plural} {fields}".strip())
        if self.fault:
            raise self.fault
        if resource == NODE:
            return tuple(manifest_of(name, {GPU: count}) for name, count in (("a", "4"), ("b", "0")))
        return (asks(3),)

    async def pages(
        self, resource: Resource, namespace: str | None, *, labels: str = "", fields: str = ""
    ) -> AsyncIterator[Page]:
        yield Page(await self.list(resource, namespace, labels=labels, fields=fields), 1)


def manifest_of(name: str, allocatable: Mapping[str, str]) -> Manifest:
    return {"metadata": {"name": name}, "status": {"allocatable": allocatable}}


def test_nodes_are_read_once_a_minute_and_only_those_with_devices_are_asked_for_their_pods() -> None:
    async def look() -> None:
        now, cluster = 0.0, Cluster()
        cache = NodeCache(cluster, is_allowed=True, clock=lambda: now)
        first, _ = await asyncio.gather(cache.nodes(), cache.nodes())
        assert free_accelerators(first or (), GPU) == {"a": 1, "b": 0}
        assert cluster.asked == ["nodes", "pods spec.nodeName=a"]
        now = NODES_TTL_SECONDS + 1
        cluster.fault = ServerFault("HTTP 500")
        assert await cache.nodes() == first, "what was known stays known"
        now += NODES_TTL_SECONDS + 1
        cluster.fault = Forbidden("HTTP 403")
        assert await cache.nodes() is None

    asyncio.run(look())


def test_who_begins_a_rollout_gets_a_fresh_look_and_many_that_do_share_it() -> None:
    async def look() -> None:
        now, cluster = 0.0, Cluster()
        cache = NodeCache(cluster, is_allowed=True, clock=lambda: now)
        await cache.nodes()
        now = 30.0
        cluster.asked.clear()
        await asyncio.gather(*(cache.nodes(5.0) for _ in range(10)))
        assert cluster.asked == ["nodes", "pods spec.nodeName=a"]

    asyncio.run(look())


def test_nodes_that_could_never_be_read_are_an_error_and_no_empty_cluster() -> None:
    cluster = Cluster()
    cluster.fault = ServerFault("HTTP 500")
    with pytest.raises(ServerFault):
        asyncio.run(NodeCache(cluster, is_allowed=True).nodes())
    cluster.asked.clear()
    assert asyncio.run(NodeCache(cluster, is_allowed=False).nodes()) is None
    assert not cluster.asked
