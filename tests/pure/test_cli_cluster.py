"""What `tidegate status`, `explain`, `top` and `drain` say of a pool, and what they refuse."""

import argparse
import asyncio
import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pools import NOW, load, pod, pool_manifest, stored
from tidegate_cli.__main__ import main
from tidegate_cli.cluster import drain, explain, status, top
from tidegate_cli.cluster.access import Cluster, Replica
from tidegate_cli.cluster.columns import age, columns
from tidegate_cli.cluster.errors import ClusterError, NotAllowed
from tidegate_operator.api.reasons import Reason
from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.labels import ENGINE_ROLE, POOL_LABEL, ROLE_LABEL
from tidegate_operator.resources import Manifest, Resource
from tidegate_operator.world.observed import Trouble

READY: dict[str, Any] = {
    "observedGeneration": 1,
    "phase": "Ready",
    "ready": "2/3",
    "readyReplicas": 2,
    "desiredReplicas": 3,
    "conditions": [
        {"type": "Ready", "status": "True", "reason": "AllReplicasReady", "message": "3 of 3 replicas serve",
         "lastTransitionTime": "2026-11-29T11:00:00Z"},
        {"type": "ScalingLimited", "status": "True", "reason": "AtMaximum", "message": "more than 3 are wanted",
         "lastTransitionTime": "2026-11-29T11:55:00Z"},
    ],
    "scalingHistory": [
        {"time": "2026-11-29T11:50:00Z", "from": 2, "to": 3, "reason": "offered 2.6 replicas",
         "inputs": {"rate": "4/s"}},
        {"time": "2026-11-29T10:00:00Z", "from": 1, "to": 2, "reason": "offered 1.4 replicas", "inputs": {}},
    ],
}  # fmt: skip


def a_pool(**spec: Any) -> InferencePool:
    return stored({**pool_manifest(**spec), "status": READY})


def a_replica(name: str = "chat-a", **facts: Any) -> Replica:
    return Replica(pod(name), "gpu-1", 0, load(running=3, waiting=1, kv_blocks_used=250, eta_seconds=0.5), **facts)


def test_the_status_tells_what_the_pool_is_and_why_it_is_not_well() -> None:
    said = status.to_table(a_pool(), [a_replica()], NOW)
    assert said.startswith("team/chat: Ready\n")
    for words in ("pvc://models/qwen", "2 ready, 3 wanted", "AtMaximum", "more than 3 are wanted", "gpu-1", "50%"):
        assert words in said


def test_a_status_of_an_older_spec_is_not_taken_for_the_present_one() -> None:
    changed = stored({**pool_manifest(), "status": READY}, generation=2)
    assert not status.is_ready(changed)
    assert "has not seen the last change" in status.to_table(changed, [], NOW)


def test_a_pool_that_no_operator_has_seen_says_so() -> None:
    assert "not seen by an operator yet" in status.to_table(stored(pool_manifest()), [], NOW)


def test_the_status_as_json_has_the_resource_s_own_status_and_each_load() -> None:
    document = json.loads(status.to_json(a_pool(), [a_replica()]))
    assert document["ready"]
    assert document["status"]["desiredReplicas"] == 3
    assert document["replicas"][0]["load"]["running"] == 3


@pytest.mark.parametrize(
    ("facts", "word"),
    [
        ({}, "Serving"),
        ({"is_terminating": True}, "Leaving"),
        ({"draining_since": NOW}, "Draining"),
        ({"ready_since": None}, "Starting"),
        ({"ready_since": None, "is_running": False}, "Pending"),
    ],
)
def test_a_replica_s_state_is_one_word(facts: dict[str, Any], word: str) -> None:
    assert status.state(replace(a_replica(), pod=pod(**facts))) == word


def test_a_replica_that_does_not_answer_shows_dashes_and_why() -> None:
    trouble = Trouble(Reason.OUT_OF_MEMORY, "the kernel killed the engine")
    silent = replace(a_replica(), load=None, silence="not allowed: get on pods/proxy")
    broken = replace(silent, pod=pod("chat-b", trouble=trouble))
    said = status.replica_table([silent, broken], NOW)
    assert "not allowed: get on pods/proxy" in said
    assert "OutOfMemory: the kernel killed the engine" in said


def test_the_explanation_is_the_last_decision_with_what_the_scaler_saw() -> None:
    said = explain.to_table(a_pool(), [a_replica()], NOW)
    assert said.startswith("team/chat: 3 replicas are wanted: offered 2.6 replicas\n")
    assert "rate  4/s" in said
    assert "limited: AtMaximum" in said
    assert "10m ago: 2 -> 3" in said


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"suspend": True}, "spec.suspend is true"),
        ({"scaling": {"mode": "Manual"}, "replicas": 3}, "scaling.mode is Manual, so spec.replicas decides"),
    ],
)
def test_who_else_decides_is_named(spec: dict[str, Any], words: str) -> None:
    assert words in explain.to_table(a_pool(**spec), [], NOW)


def test_a_pool_that_never_scaled_has_the_size_it_started_with() -> None:
    assert "the size it started with" in explain.to_table(stored(pool_manifest()), [], NOW)


def test_the_load_of_a_pool_is_that_of_all_replicas_that_answer() -> None:
    replicas = [a_replica("a"), replace(a_replica("b"), load=load(boot_id="2", running=2, kv_blocks_used=0))]
    silent = replace(a_replica("c"), load=None)
    said = top.pool_table([top.PoolLoad.of(a_pool(), [*replicas, silent])], [], 0)
    assert said.splitlines()[1].split()[:6] == ["chat", "2/3", "2/3", "5", "1", "25%"]


def test_rates_count_only_processes_that_reported_both_times() -> None:
    def at(arrivals: int, boot_id: str) -> top.PoolLoad:
        return top.PoolLoad.of(a_pool(), [replace(a_replica(), load=load(arrivals=arrivals, boot_id=boot_id))])

    assert top.pool_table([at(30, "1")], [at(10, "1")], 4).endswith("5.0")
    assert top.pool_table([at(30, "2")], [at(10, "1")], 4).endswith("0.0")  # it began anew


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert columns(("A", "B"), [("long", "x"), ("s", "")]) == "A      B\nlong   x\ns"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (119, "119s"), (120, "2m"), (3600, "1h"), (4800, "1h20m"), (200_000, "2d")]
)
def test_ages_are_short(seconds: int, text: str) -> None:
    assert age(NOW - timedelta(seconds=seconds), NOW) == text


def test_without_a_cluster_the_command_says_how_to_name_one(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "chat", "--kubeconfig", str(tmp_path / "none")]) == 1
    said = capsys.readouterr().err
    assert "no cluster to ask" in said
    assert "--kubeconfig" in said


class _Pods:
    """The part of a cluster that a drain meets, scripted: evictions refused so often, then gone after so many looks."""

    def __init__(self, num_refusals: int = 0, num_looks: int = 1) -> None:
        self.kube = self
        self.num_refusals, self.num_looks = num_refusals, num_looks
        self.evicted: list[str] = []

    async def evict(self, namespace: str, name: str) -> str:
        if self.num_refusals:
            self.num_refusals -= 1
            return "it would violate the pod's disruption budget"
        self.evicted.append(f"{namespace}/{name}")
        return ""

    async def get(self, resource: Resource, namespace: str, name: str) -> Manifest | None:
        self.num_looks -= 1
        return a_pod(name) if self.num_looks >= 0 else None

    async def load(self, pod: Any, namespace: str) -> Any:
        return load(running=2)

    async def pod(self, name: str) -> Manifest:
        return a_pod(name, labels={}) if name == "stranger" else a_pod(name)


def a_pod(name: str, labels: dict[str, str] | None = None) -> Manifest:
    usual = {POOL_LABEL: "chat", ROLE_LABEL: ENGINE_ROLE}
    return {
        "metadata": {"name": name, "namespace": "team", "uid": name, "creationTimestamp": "2026-11-29T11:00:00Z",
                     "labels": usual if labels is None else labels},
        "spec": {}, "status": {},
    }  # fmt: skip


def _drain(cluster: _Pods, names: list[str], timeout_seconds: float = 100.0) -> list[str]:
    said: list[str] = []
    now = 0.0

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    async def carry_out(cluster: Cluster) -> None:
        chosen = await drain.choose(cluster, names, None)
        await drain.drain(cluster, chosen, timeout_seconds, said.append, drain.Time(lambda: now, sleep))

    asyncio.run(carry_out(cluster))  # type: ignore[arg-type]
    return said


def test_replicas_leave_one_after_the_other_and_are_waited_for() -> None:
    cluster = _Pods(num_looks=1)
    said = _drain(cluster, ["a", "b"])
    assert cluster.evicted == ["team/a", "team/b"]
    assert said == ["a: leaving", "a: 2 requests running, 0 waiting", "a: gone", "b: leaving", "b: gone"]


def test_a_disruption_budget_is_waited_for_and_named() -> None:
    said = _drain(_Pods(num_refusals=2, num_looks=0), ["a"])
    assert said == ["a: must not leave yet: it would violate the pod's disruption budget", "a: leaving", "a: gone"]


def test_a_drain_that_takes_too_long_ends_with_what_is_left() -> None:
    with pytest.raises(ClusterError, match="2 requests running, 0 waiting; the time is over"):
        _drain(_Pods(num_looks=1000), ["a"], timeout_seconds=10)


def test_only_engines_of_a_pool_are_drained() -> None:
    with pytest.raises(NotAllowed, match="stranger is no engine of a pool"):
        _drain(_Pods(), ["a", "stranger"])


def test_a_drain_wants_pods_or_a_node() -> None:
    parser = argparse.ArgumentParser()
    drain.add_arguments(parser)
    assert parser.parse_args(["--node", "gpu-1"]).node == "gpu-1"


def test_a_drain_of_nothing_is_refused() -> None:
    with pytest.raises(NotAllowed, match="name pods, or give --node"):
        _drain(_Pods(), [])


@pytest.mark.parametrize(
    "text",
    [
        b"\xff\xfe", b"\0", b"[a]", b"a word", b"a: 2026-13-45", b"contexts: [null]\ncurrent-context: a",
        b"contexts: 3\ncurrent-context: a",
    ],
)  # fmt: skip
def test_a_file_that_is_no_kubeconfig_is_refused_in_a_sentence(
    text: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config"
    file.write_bytes(text)
    assert main(["status", "chat", "--kubeconfig", str(file)]) == 1
    assert "tidegate status: the kubeconfig cannot be used: " in capsys.readouterr().err
