"""Two operators, one Lease: one writes, the other stands by with everything known, and takes over."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from flaky_proxy import FlakyProxy, flaky_proxy
from kubelet import Kubelet
from operator_process import OperatorUnderTest
from pools import pool_manifest
from waiting import eventually

LEADER = "tidegate_operator_leader"


def with_election(operator: OperatorUnderTest, *, duration: str, deadline: str) -> OperatorUnderTest:
    election = {
        "TIDEGATE_ELECTION__NAMESPACE": operator.namespace,
        "TIDEGATE_ELECTION__DURATION_SECONDS": duration,
        "TIDEGATE_ELECTION__RENEW_DEADLINE_SECONDS": deadline,
        "TIDEGATE_ELECTION__RETRY_SECONDS": "0.5",
    }
    operator.settings |= election
    return operator


@pytest.fixture
def second(stopped_operator: OperatorUnderTest, tmp_path: Path) -> Iterator[OperatorUnderTest]:
    """Of the same release as `stopped_operator`, with a way of its own to the API server; not started."""
    folder = tmp_path / "second"
    folder.mkdir()
    kubeconfig = Path(shutil.copy(stopped_operator.kubeconfig, folder / "kubeconfig"))
    other = replace(stopped_operator, folder=folder, kubeconfig=kubeconfig)
    other.settings = stopped_operator.settings
    yield other
    other.client.close()
    other.end()


@pytest.fixture
def proxy(stopped_operator: OperatorUnderTest, second: OperatorUnderTest) -> Iterator[FlakyProxy]:
    """Between the first operator and the API server."""
    with flaky_proxy(stopped_operator.kubeconfig, seed=1) as started:
        yield started


def become_ready(operator: OperatorUnderTest, ready: str) -> None:
    def is_so() -> bool:
        status = operator.pool().get("status", {})
        return (status.get("phase"), status.get("ready")) == ("Ready", ready)

    eventually(is_so, timeout_seconds=60, what=f"the pool is Ready with {ready}")


def leads(operator: OperatorUnderTest) -> bool:
    try:
        return operator.metric(LEADER) == 1
    except OSError:  # it has ended
        return False


def test_a_leader_that_is_cut_off_ends_before_the_standby_takes_over(
    stopped_operator: OperatorUnderTest, second: OperatorUnderTest, proxy: FlakyProxy, nodes: Kubelet
) -> None:
    first = with_election(stopped_operator, duration="4", deadline="2.5")
    first.start()
    eventually(lambda: leads(first))
    second.start()
    first.apply(pool_manifest())
    become_ready(first, "1/1")
    assert second.metric("tidegate_operator_reconcile_total") == 0
    assert second.metric("tidegate_operator_watch_age_seconds{") > 0, "a standby knows the pools already"

    proxy.status_for_all = 503
    both = []

    def has_changed_hands() -> bool:
        both.append((leads(first), leads(second)))
        return both[-1][1]

    eventually(has_changed_hands, timeout_seconds=60)
    assert (True, True) not in both
    process = first.process
    assert process is not None
    eventually(lambda: process.poll() == 1, timeout_seconds=60)
    second.apply(pool_manifest(replicas=2, maxReplicas=2, scaling={"mode": "Manual"}))
    become_ready(second, "2/2")
    second.assert_quiescent()


def test_a_leader_that_is_asked_to_end_hands_over_at_once(
    stopped_operator: OperatorUnderTest, second: OperatorUnderTest, nodes: Kubelet
) -> None:
    first = with_election(stopped_operator, duration="600", deadline="300")
    first.start()
    eventually(lambda: leads(first))
    second.start()
    first.apply(pool_manifest())
    become_ready(first, "1/1")
    assert first.stop() == 0
    eventually(lambda: leads(second), timeout_seconds=30)
    second.apply(pool_manifest(replicas=2, maxReplicas=2, scaling={"mode": "Manual"}))
    become_ready(second, "2/2")
    assert second.stop() == 0
    assert "Traceback" not in first.log() + second.log()
