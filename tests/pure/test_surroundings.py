"""One look a minute at what others brought; APIs that are not there are simply nothing."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from pools import UID, pool
from tidegate_operator.api.reasons import Reason
from tidegate_operator.decisions.integration import MonitoringDefaults, integrate
from tidegate_operator.errors import Forbidden, KubeError, NotFound, ServerFault, Unreachable
from tidegate_operator.resources import AUTOSCALER, GIE_POOL, POD_MONITOR, SCALED_OBJECT, Manifest, Resource
from tidegate_operator.world.kept import RETRY_SECONDS
from tidegate_operator.world.neighbours import Neighbourhood
from tidegate_operator.world.surroundings import TTL_SECONDS, Surroundings

HPA = {
    "kind": "HorizontalPodAutoscaler",
    "metadata": {"name": "h", "namespace": "team"},
    "spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "chat"}},
}


class Cluster:
    """An API server with some of the APIs; lists are counted."""

    def __init__(self, **found: list[Manifest] | KubeError) -> None:
        self.found: dict[str, list[Manifest] | KubeError] = {
            kind.kind: NotFound("the server could not find the requested resource", 404)
            for kind in (SCALED_OBJECT, GIE_POOL, POD_MONITOR)
        } | found  # type: ignore[assignment] # a union of the two
        self.lists: Counter[tuple[str, str | None]] = Counter()

    async def list(self, resource: Resource, namespace: str | None) -> tuple[Manifest, ...]:
        self.lists[resource.kind, namespace] += 1
        answer = self.found.get(resource.kind, [])
        if isinstance(answer, KubeError):
            raise answer
        return tuple(answer)


class Watched:
    def __init__(self, cluster: Cluster, *namespaces: str) -> None:
        self.now = 0.0
        self.surroundings = Surroundings(cluster, namespaces, Path("/nowhere"), clock=lambda: self.now)  # type: ignore[arg-type]

    def look(self, seconds_later: float = 0.0) -> Neighbourhood:
        self.now += seconds_later
        return asyncio.run(self.surroundings.around(pool()))


def test_a_cluster_without_neighbours_is_nothing_and_asked_once_a_minute() -> None:
    cluster = Cluster()
    watched = Watched(cluster)
    for _ in range(3):
        assert watched.look() == Neighbourhood()
    assert set(cluster.lists.values()) == {1}
    watched.look(TTL_SECONDS + 1)
    assert set(cluster.lists.values()) == {2}


def test_an_api_that_is_installed_later_is_found() -> None:
    cluster = Cluster()
    watched = Watched(cluster)
    assert watched.look().installed == frozenset()
    cluster.found[GIE_POOL.kind] = []
    assert watched.look(TTL_SECONDS + 1).installed == {GIE_POOL}


def test_the_neighbours_of_a_pool_are_those_of_its_namespace() -> None:
    elsewhere = {**HPA, "metadata": {"name": "x", "namespace": "other"}}
    found = Watched(Cluster(HorizontalPodAutoscaler=[HPA, elsewhere])).look()
    assert [str(each) for each in found.scalers] == ["HorizontalPodAutoscaler h"]


def test_in_namespaced_mode_only_those_namespaces_are_listed() -> None:
    cluster = Cluster()
    Watched(cluster, "team", "b").look()
    assert {namespace for kind, namespace in cluster.lists if kind == AUTOSCALER.kind} == {"team", "b"}


def test_where_the_role_says_no_it_is_said_once_and_nothing_stops(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched(Cluster(HorizontalPodAutoscaler=Forbidden("no", 403)))
    for _ in range(3):
        assert watched.look(TTL_SECONDS + 1) == Neighbourhood()
    assert caplog.text.count("are not looked at") == 1


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        pytest.param(Forbidden("no", 403), "the operator's role does not allow it to list them", id="forbidden"),
        pytest.param(ServerFault("later", 500), "the API server cannot list them (HTTP 500)", id="failing"),
        pytest.param(Unreachable("<object at 0x7f>"), "the API server cannot list them (no answer)", id="silent"),
    ],
)
def test_an_api_that_cannot_be_looked_at_is_not_taken_for_one_that_is_not_installed(
    fault: KubeError, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = Cluster(PodMonitor=fault)
    watched = Watched(cluster)
    for _ in range(3):
        around = watched.look(TTL_SECONDS + 1)
    found = integrate(pool(), around, MonitoringDefaults(has_pod_monitors=True))
    assert (found.apply, found.delete) == ((), ())
    assert found.trouble is not None
    assert found.trouble[0] is Reason.API_NOT_READABLE
    assert found.trouble[1].startswith(f"podmonitors.monitoring.coreos.com: {why}")
    assert caplog.text.count("podmonitors.monitoring.coreos.com are") == 1

    cluster.found[POD_MONITOR.kind] = []
    assert len(integrate(pool(), watched.look(TTL_SECONDS + 1), MonitoringDefaults(has_pod_monitors=True)).apply) == 1


def test_trouble_with_the_api_server_leaves_what_was_known() -> None:
    cluster = Cluster(HorizontalPodAutoscaler=[HPA], PodMonitor=[])
    watched = Watched(cluster)
    before = watched.look()
    cluster.found = dict.fromkeys(cluster.found, ServerFault("later", 500))
    assert watched.look(TTL_SECONDS + 1) == before


def test_an_object_of_a_person_with_a_childs_name_is_seen_although_it_has_no_label_of_ours() -> None:
    theirs = {
        "apiVersion": POD_MONITOR.api_version, "kind": POD_MONITOR.kind, "spec": {},
        "metadata": {"name": "chat", "namespace": "team"},
    }  # fmt: skip
    around = Watched(Cluster(PodMonitor=[theirs])).look()
    assert around.optional == (theirs,)
    found = integrate(pool(), around, MonitoringDefaults(has_pod_monitors=True))
    assert (found.apply, found.trouble and found.trouble[0]) == ((), Reason.CHILD_NOT_OURS)


def test_what_was_written_stands_until_the_next_look() -> None:
    cluster = Cluster(PodMonitor=[])
    watched = Watched(cluster)
    watched.look()
    metadata = {"name": "chat", "namespace": "team", "ownerReferences": [{"controller": True, "uid": UID}]}
    made = {"apiVersion": POD_MONITOR.api_version, "kind": POD_MONITOR.kind, "metadata": metadata}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": metadata}
    watched.surroundings.wrote((made, service), ())
    assert watched.look().optional == (made,)
    watched.surroundings.wrote((), (made,))
    assert watched.look().optional == ()


def test_what_was_written_stands_while_only_another_kind_is_looked_at_again() -> None:
    watched = Watched(Cluster(PodMonitor=[], HorizontalPodAutoscaler=ServerFault("later", 500)))
    watched.look()
    metadata = {"name": "chat", "namespace": "team", "ownerReferences": [{"controller": True, "uid": UID}]}
    made = {"apiVersion": POD_MONITOR.api_version, "kind": POD_MONITOR.kind, "metadata": metadata}
    watched.surroundings.wrote((made,), ())
    assert watched.look(RETRY_SECONDS + 1).optional == (made,)
    assert watched.look(TTL_SECONDS).optional == (), "a look says that it is gone"
