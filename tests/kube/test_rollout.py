"""Rollouts by the real Deployment controller: who goes first, what a failed one leaves, and what evictions may take."""

import json
from hashlib import sha256

from e2e.cluster.errors import KubectlFailed
from fake_engines import FakeEngines
from kubelet import Ending, Kubelet
from operator_process import OperatorUnderTest
from pools import pool_manifest
from tidegate_core.termination import ExitCode, TerminationMessage
from waiting import eventually

TWO = {"scaling": {"mode": "Manual"}, "replicas": 2}
CHANGED = {"context": {"max": 2048, "min": 1024}}


def become_ready(operator: OperatorUnderTest, ready: str) -> None:
    def is_ready() -> bool:
        is_ready = operator.is_current() and operator.is_condition("Ready", "True")
        return is_ready and operator.pool()["status"]["ready"] == ready

    eventually(is_ready, what=f"ready {ready}", timeout_seconds=60)


def uids(operator: OperatorUnderTest) -> set[str]:
    return {pod["metadata"]["uid"] for pod in operator.engine_pods()}


def context_of_template(operator: OperatorUnderTest) -> str:
    args = operator.get("deployment", "chat")["spec"]["template"]["spec"]["containers"][0]["args"]
    return next(arg for arg in args if arg.startswith("--context="))


def test_a_template_whose_engines_end_again_and_again_goes_back_and_only_another_change_is_tried(
    operator: OperatorUnderTest, nodes: Kubelet
) -> None:
    operator.apply(pool_manifest(**TWO))
    become_ready(operator, "2/2")
    before = uids(operator)
    words = TerminationMessage(reason="OutOfMemory", message="the KV cache does not fit").encode()
    nodes.engine_ending = Ending(ExitCode.DOES_NOT_FIT, words)
    operator.apply(pool_manifest(**TWO, **CHANGED))
    eventually(lambda: operator.condition("Stalled").get("reason") == "RolloutAborted")
    nodes.engine_ending = None
    eventually(lambda: operator.pool()["status"]["ready"] == "2/2", what="the last good template is back everywhere")
    assert len(before & uids(operator)) == 1, "one was replaced in vain, the other served throughout"
    assert context_of_template(operator) == "--context=4096"
    message = operator.condition("Stalled")["message"]
    assert "template 2 was given up: EngineFailing: the engine ended with exit code 4" in message
    assert "the KV cache does not fit; 2 replicas go on serving" in message
    assert operator.is_condition("Available", "True")
    operator.assert_quiescent()
    warnings = [event for event in operator.get("events.events.k8s.io") if event["reason"] == "RolloutAborted"]
    assert [event["type"] for event in warnings] == ["Warning"]

    operator.stop()
    operator.start()
    operator.assert_quiescent()
    assert context_of_template(operator) == "--context=4096", "a restarted operator does not try it again"
    operator.apply(pool_manifest(**TWO, context={"max": 3072, "min": 1024}))
    eventually(lambda: context_of_template(operator) == "--context=3072")
    become_ready(operator, "2/2")
    assert "givenUp" not in operator.pool()["status"]["rollout"]
    operator.assert_quiescent()


def test_a_broken_replica_is_replaced_before_one_that_serves(
    operator: OperatorUnderTest, nodes: Kubelet, engines: FakeEngines
) -> None:
    operator.apply(pool_manifest(**TWO))
    become_ready(operator, "2/2")
    broken, serving = sorted(engines.by_pod)
    engines.by_pod[broken].is_ready = False
    eventually(lambda: operator.pool()["status"]["readyReplicas"] == 1)
    nodes.starts_engines = False
    operator.apply(pool_manifest(**TWO, **CHANGED))

    def names() -> set[str]:
        return {pod["metadata"]["name"] for pod in operator.engine_pods()}

    eventually(lambda: broken not in names() and len(names()) == 2)
    assert serving in names()
    nodes.starts_engines = True
    become_ready(operator, "2/2")
    assert serving not in names()
    operator.assert_quiescent()


def test_evictions_take_one_replica_at_a_time_from_a_pool_that_keeps_two(
    operator: OperatorUnderTest, nodes: Kubelet
) -> None:
    kubectl, namespace = operator.access.kubectl, operator.namespace
    operator.apply(pool_manifest(**TWO))
    become_ready(operator, "2/2")

    def evict(pod: str) -> bool:
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod, "namespace": namespace},
        }
        path = f"/api/v1/namespaces/{namespace}/pods/{pod}/eviction"
        try:
            kubectl("create", "--raw", path, "-f", "-", input=json.dumps(eviction))
        except KubectlFailed:
            return False
        return True

    eventually(lambda: operator.get("poddisruptionbudget", "chat-engines")["status"]["disruptionsAllowed"] == 1)
    first, second = sorted(pod["metadata"]["name"] for pod in operator.engine_pods())
    nodes.starts_engines = False
    assert evict(first)
    assert not evict(second), "the first one's successor does not serve yet"
    nodes.starts_engines = True
    become_ready(operator, "2/2")
    operator.assert_quiescent()
    operator.apply(pool_manifest(scaling={"mode": "Manual"}, replicas=1))
    eventually(lambda: not operator.exists("poddisruptionbudget", "chat-engines"))
    become_ready(operator, "1/1")
    operator.assert_quiescent()


def test_a_rotated_drain_token_drains_old_pods_with_the_old_one_and_is_told_to_new_pods(
    operator: OperatorUnderTest, engines: FakeEngines
) -> None:
    operator.apply(pool_manifest(**TWO))
    become_ready(operator, "2/2")
    token_file = operator.folder / "drain-token"
    (operator.folder / "drain-token-before").write_text(token_file.read_text())
    token_file.write_text("another")
    for engine in engines.by_pod.values():
        engine.set_load(running=1)
    operator.apply(pool_manifest(scaling={"mode": "Manual"}, replicas=1))
    eventually(lambda: any(engine.report.draining for engine in engines.by_pod.values()), what="an old pod drains")
    for engine in engines.by_pod.values():
        engine.set_load(running=0)
    become_ready(operator, "1/1")
    assert all(engine.num_unauthorised == 0 for engine in engines.by_pod.values())
    operator.apply(pool_manifest(scaling={"mode": "Manual"}, replicas=1, **CHANGED))
    told = f"--drain-token-sha256={sha256(b'another').hexdigest()}"

    def args() -> list[str]:
        template = operator.get("deployment", "chat")["spec"]["template"]
        return list(template["spec"]["containers"][0]["args"])

    eventually(lambda: told in args())
    become_ready(operator, "1/1")
    operator.assert_quiescent()
