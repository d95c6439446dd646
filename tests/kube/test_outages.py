"""The API server is flaky, forgets who we are, or loses the resource itself: the operator comes back to its pools."""

import random
from collections.abc import Iterator

import pytest

from e2e.cluster.api_server import ApiServer
from e2e.installation.crds import wait_for_crds
from flaky_proxy import FlakyProxy, flaky_proxy
from kubelet import Kubelet
from operator_process import CRD_FILE, OperatorUnderTest
from pools import pool_manifest
from tidegate_operator.control.lookout import SETTLE_SECONDS
from waiting import eventually

CRD = "inferencepools.tidegate.dev"


@pytest.fixture
def proxy(stopped_operator: OperatorUnderTest) -> Iterator[FlakyProxy]:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    with flaky_proxy(stopped_operator.kubeconfig, seed) as started:
        yield started


def become_ready(operator: OperatorUnderTest, name: str = "chat", ready: str = "1/1") -> None:
    def is_so() -> bool:
        status = operator.pool(name).get("status", {})
        return operator.is_current(name) and (status.get("phase"), status.get("ready")) == ("Ready", ready)

    eventually(is_so, timeout_seconds=90, what=f"{name} is Ready with {ready}")


def test_faults_lost_answers_and_cut_watches_change_nothing_in_the_end(
    stopped_operator: OperatorUnderTest, nodes: Kubelet, proxy: FlakyProxy
) -> None:
    operator = stopped_operator
    operator.start()
    proxy.fault_share, proxy.lost_share, proxy.cut_share = 0.03, 0.01, 0.3
    wishes = [1, 3, 1, 2]
    for count in wishes:
        for name in ("a", "b"):
            operator.apply(pool_manifest(name, replicas=count, scaling={"mode": "Manual"}, drain={"timeoutSeconds": 1}))
        for name in ("a", "b"):
            become_ready(operator, name, f"{count}/{count}")
    assert proxy.num_faults > 10
    proxy.fault_share = proxy.lost_share = proxy.cut_share = 0.0
    assert sorted(each["metadata"]["name"] for each in operator.get("deployments")) == ["a", "b"]
    assert len(operator.engine_pods()) == 4
    operator.assert_quiescent()


def test_a_watch_that_fails_for_good_ends_the_process_so_that_it_is_started_again(
    stopped_operator: OperatorUnderTest, nodes: Kubelet, proxy: FlakyProxy
) -> None:
    """kopf ends with it, but waits for its other watches for ever: a process that lives and sees nothing."""
    operator = stopped_operator
    operator.start()
    operator.apply(pool_manifest())
    become_ready(operator)
    proxy.status_for_all, proxy.cut_share = 404, 1.0
    operator.access.kubectl(
        "annotate", "deployment", "chat", "any=thing", "-n", operator.namespace
    )  # watches get a chunk
    process = operator.process
    assert process is not None
    eventually(lambda: process.poll() == 1, timeout_seconds=60)
    proxy.status_for_all, proxy.cut_share = None, 0.0
    operator.start()
    operator.assert_quiescent()


def test_pools_that_no_watch_tells_of_are_found_all_the_same(
    stopped_operator: OperatorUnderTest, nodes: Kubelet, proxy: FlakyProxy
) -> None:
    operator = stopped_operator
    operator.start()
    proxy.is_silent = True
    operator.apply(pool_manifest())
    become_ready(operator)
    operator.assert_quiescent()


def test_what_is_deleted_while_watches_are_too_far_behind_is_found_by_the_list_that_follows(
    stopped_operator: OperatorUnderTest, nodes: Kubelet, proxy: FlakyProxy
) -> None:
    """kopf lists anew after a 410 and says nothing of what is gone; no resync comes to help here."""
    operator = stopped_operator
    operator.settings |= {"TIDEGATE_RECONCILE__RESYNC_SECONDS": "3600"}
    operator.start()
    operator.apply(pool_manifest())
    become_ready(operator)
    eventually(lambda: min(operator.watch_ages()) > SETTLE_SECONDS, what="the list that follows the first watches")
    proxy.is_silent = True
    operator.access.kubectl("delete", "service", "chat", "-n", operator.namespace)
    before = operator.num_reconciles()
    eventually(lambda: operator.num_reconciles() > before + 3)
    assert not operator.exists("service", "chat"), "nobody has told of it"
    proxy.is_silent, proxy.is_history_lost = False, True
    proxy.cut_watches()
    eventually(lambda: proxy.num_faults > 0, timeout_seconds=60)
    proxy.is_history_lost = False
    eventually(lambda: operator.exists("service", "chat"), timeout_seconds=60)


def test_a_slow_api_server_makes_it_slow_and_nothing_else(
    stopped_operator: OperatorUnderTest, nodes: Kubelet, proxy: FlakyProxy
) -> None:
    operator = stopped_operator
    operator.settings |= {"TIDEGATE_ELECTION__NAMESPACE": operator.namespace}
    operator.start()
    proxy.delay_seconds = 0.7
    operator.apply(pool_manifest(replicas=2, maxReplicas=2, scaling={"mode": "Manual"}))
    become_ready(operator, ready="2/2")
    assert "failed, again in" not in operator.log()
    assert operator.metric("tidegate_operator_leader") == 1
    proxy.delay_seconds = 0.0
    operator.assert_quiescent()


def test_a_token_that_is_refused_for_a_while_costs_nothing_but_that_while(
    stopped_operator: OperatorUnderTest, nodes: Kubelet, proxy: FlakyProxy
) -> None:
    operator = stopped_operator
    operator.start()
    operator.apply(pool_manifest())
    become_ready(operator)
    proxy.status_for_all = 401
    eventually(lambda: proxy.num_faults > 4)
    operator.apply(pool_manifest(replicas=2, maxReplicas=2, scaling={"mode": "Manual"}))
    proxy.status_for_all = None

    def is_back() -> bool:
        revive(operator)
        return bool(operator.pool()["status"]["ready"] == "2/2")

    eventually(is_back, timeout_seconds=90)
    operator.assert_quiescent()


def test_a_resource_that_is_removed_and_added_again_is_served_again(
    operator: OperatorUnderTest, api_server: ApiServer
) -> None:
    operator.apply(pool_manifest())
    become_ready(operator)
    try:
        api_server.kubectl("delete", "crd", CRD)
        eventually(lambda: not operator.get("deployments"), timeout_seconds=60)
    finally:
        api_server.kubectl("apply", "--server-side", "-f", CRD_FILE)
        wait_for_crds(api_server, CRD)
    operator.apply(pool_manifest())

    def is_back() -> bool:
        revive(operator)
        return bool(operator.pool().get("status", {}).get("phase") == "Ready")

    eventually(is_back, timeout_seconds=90)
    operator.assert_quiescent()


def test_it_ends_with_0_while_it_waits_for_its_resource(
    stopped_operator: OperatorUnderTest, api_server: ApiServer
) -> None:
    operator = stopped_operator
    api_server.kubectl("delete", "crd", CRD)
    try:
        operator.launch()
        eventually(lambda: "is not installed; waiting for its CRD" in operator.log())
        assert operator.stop() == 0
    finally:
        api_server.kubectl("apply", "--server-side", "-f", CRD_FILE)
        wait_for_crds(api_server, CRD)
    assert "Traceback" not in operator.log()


def revive(operator: OperatorUnderTest) -> None:
    """As a kubelet does with a process that ended."""
    if operator.process is not None and operator.process.poll() is not None:
        print(f"ended with {operator.process.returncode}, started again")
        operator.start()
