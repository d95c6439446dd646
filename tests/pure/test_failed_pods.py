"""Failed pods: a few stay as evidence, the others go, and nodes where they pile up are named."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from pools import NOW, SETTINGS, pod, pool, settled
from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.decisions.failed_pods import MAX_KEPT, judge_failed_pods
from tidegate_operator.decisions.planning import plan
from tidegate_operator.manifests.avoidance import avoiding
from tidegate_operator.resources import Manifest
from tidegate_operator.world.observed import Ending, Observed, Pod
from tidegate_operator.world.readers import read_pod

REFUSED = "UnexpectedAdmissionError"


def failed(
    name: str, node: str = "gpu-1", minutes_ago: float = 1, reason: str = REFUSED, message: str = "no devices"
) -> Pod:
    ending = Ending(reason, message, NOW - timedelta(minutes=minutes_ago))
    return pod(name, node=node, ending=ending, is_terminating=True, has_ended=True, ready_since=None)


def manifest(**status: Any) -> dict[str, Any]:
    metadata = {"name": "a", "namespace": "team", "uid": "1", "creationTimestamp": "2026-11-29T10:00:00Z"}
    return {"metadata": metadata, "spec": {"nodeName": "gpu-1"}, "status": status}


def names(pods: tuple[Pod, ...]) -> list[str]:
    return [each["metadata"]["name"] for each in judge_failed_pods(pods, NOW).delete]


def test_of_thousands_of_failed_pods_the_youngest_few_stay() -> None:
    pods = tuple(failed(f"p{number:04}", minutes_ago=number / 100) for number in range(2000))
    assert names(pods) == [f"p{number:04}" for number in range(MAX_KEPT, 2000)]


def test_after_an_hour_no_failed_pod_is_left_and_living_ones_are_not_touched() -> None:
    assert names((failed("old", minutes_ago=61), failed("young", minutes_ago=59), pod("alive"))) == ["old"]


def test_a_node_that_fails_pods_again_and_again_is_named_with_the_last_cause_and_what_to_do() -> None:
    found = judge_failed_pods(
        (failed("a", minutes_ago=3), failed("b", minutes_ago=2, message="gpu gone"), failed("c", "gpu-2")), NOW
    )
    assert found.nodes == ("gpu-1",)
    assert found.message.startswith("gpu-1: ")
    assert f"{REFUSED}: gpu gone" in found.message
    assert "kubectl describe node gpu-1" in found.message


def test_one_failed_pod_accuses_no_node() -> None:
    assert judge_failed_pods((failed("a"), failed("b", "gpu-2"), failed("c", "")), NOW).nodes == ()


def test_the_words_do_not_change_while_nothing_happens() -> None:
    pods = (failed("a", minutes_ago=3), failed("b", minutes_ago=2))
    later = NOW + timedelta(minutes=10)
    assert judge_failed_pods(pods, NOW) == judge_failed_pods(pods[::-1], later)


def test_why_a_pod_failed_is_read_from_whoever_said_so() -> None:
    refused = read_pod(manifest(phase="Failed", reason=REFUSED, message="Allocate failed"))
    assert refused.ending == Ending(REFUSED, "Allocate failed", refused.created_at)
    ended = {"exitCode": 1, "reason": "Error", "message": "boom", "finishedAt": "2026-11-29T11:00:00Z"}
    crashed = read_pod(manifest(phase="Failed", containerStatuses=[{"name": "engine", "state": {"terminated": ended}}]))
    assert crashed.ending is not None
    assert (crashed.ending.reason, crashed.ending.message, crashed.ending.at.hour) == ("Error", "boom", 11)
    assert read_pod(manifest(phase="Running")).ending is None


def test_a_failed_pod_that_somebody_deletes_already_is_left_to_them() -> None:
    leaving = manifest(phase="Failed", reason="Evicted")
    leaving["metadata"]["deletionTimestamp"] = "2026-11-29T11:00:00Z"
    assert read_pod(leaving).ending is None


def deployments(subject: InferencePool, observed: Observed) -> list[Manifest]:
    """That are written."""
    return [each for each in plan(subject, observed, SETTINGS, NOW).apply if each["kind"] == "Deployment"]


def preferences(template: Manifest) -> list[Any]:
    found = template["spec"].get("affinity", {}).get("nodeAffinity", {})
    return list(found.get("preferredDuringSchedulingIgnoredDuringExecution", []))


def test_a_new_template_would_rather_be_elsewhere_and_one_in_use_is_left_alone() -> None:
    bad = (failed("a"), failed("b"))
    first = settled(pool())
    assert not deployments(pool(), replace(first, pods=bad)), "no rollout because of it"
    changed = pool(context={"max": 2048, "min": 1024})
    (deployment,) = deployments(changed, replace(first, pods=bad))
    (term,) = preferences(deployment["spec"]["template"])
    assert term["preference"]["matchFields"] == [{"key": "metadata.name", "operator": "NotIn", "values": ["gpu-1"]}]


def test_what_a_user_prefers_stays_beside_it() -> None:
    own = {"weight": 1, "preference": {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}}
    node_affinity = {"preferredDuringSchedulingIgnoredDuringExecution": [own]}
    template = {"spec": {"affinity": {"nodeAffinity": node_affinity, "podAffinity": {}}, "containers": []}}
    both = avoiding(template, ("gpu-1",))
    assert preferences(both)[0] == own
    assert len(preferences(both)) == 2
    assert "podAffinity" in both["spec"]["affinity"]
    assert avoiding(template, ()) == template
