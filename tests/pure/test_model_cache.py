"""A pool's cache, step by step: sized from the model, filled once, continued, taken again, removed."""

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from hub_pools import COMMIT, GIB, NEXT_COMMIT, found, hub_pool, live_claim
from pools import NOW, SETTINGS, carried_out, inspected, pod, pool, settled
from tidegate_core.launch import EngineLaunch
from tidegate_core.termination import ExitCode, TerminationMessage
from tidegate_operator.api.reasons import Reason
from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.decisions.plan import Plan
from tidegate_operator.decisions.planning import plan
from tidegate_operator.report.findings import Replicas, find_all
from tidegate_operator.resources import Manifest
from tidegate_operator.world.observed import Inspection, Node, Observed, Termination, Trouble

SNAPSHOT = f"Qwen/Qwen3-8B@{COMMIT}"


def steps_of(subject: InferencePool, observed: Observed, now: Any = NOW) -> Plan:
    return plan(subject, observed, SETTINGS, now)


def known(subject: InferencePool, words: str = "", **facts: Any) -> Observed:
    """The world once the model was inspected."""
    (job,) = steps_of(subject, Observed()).apply
    return Observed(inspections=(inspected(words or found(), name=job["metadata"]["name"]),), **facts)


def after(observed: Observed, steps: Plan) -> Observed:
    """A plan carried out, the claim included, which is seen whoever owns it."""
    claims = [each for each in steps.apply if each["kind"] == "PersistentVolumeClaim"]
    seen = live_claim(claims[-1]) if claims else observed.cache_claim
    return replace(carried_out(observed, steps), cache_claim=seen)


def only(steps: Plan, kind: str) -> Manifest:
    (each,) = [each for each in steps.apply if each["kind"] == kind]
    return each


def job_of(observed: Observed) -> Manifest:
    (job,) = [each for each in observed.children if each["kind"] == "Job"]
    return job


def download(job: Manifest, exit_code: int | None = None, message: str = SNAPSHOT, **facts: Any) -> Inspection:
    """The Job's end, or that it runs."""
    name, is_finished = job["metadata"]["name"], exit_code is not None
    ended = Termination(exit_code, "", message) if exit_code is not None else None
    usual = Inspection(
        name, name, int(name.rpartition("-")[2]), is_finished=is_finished, finished_at=NOW if is_finished else None,
        failure="", termination=ended, trouble=None, created_at=NOW, has_pod=True,
    )  # fmt: skip
    return replace(usual, **facts)


def downloading(subject: InferencePool, **facts: Any) -> Observed:
    """The claim is there and the download Job exists."""
    observed = known(subject, **facts)
    observed = after(observed, steps_of(subject, observed))
    return after(observed, steps_of(subject, observed))


def filled(subject: InferencePool) -> Observed:
    """The claim holds the model, and everything was deployed."""
    observed = downloading(subject)
    observed = replace(observed, downloads=(download(job_of(observed), 0),))
    for _ in range(4):
        observed = after(observed, steps_of(subject, observed))
        jobs = {each["metadata"]["name"] for each in observed.children if each["kind"] == "Job"}
        observed = replace(observed, downloads=tuple(each for each in observed.downloads if each.name in jobs))
    return observed


def cache_condition(subject: InferencePool, observed: Observed) -> Any:
    steps = steps_of(subject, observed)
    conditions = find_all(subject, steps, (), Replicas.of(observed, steps))
    return next(each for each in conditions if each.type == "ModelCached")


def test_a_claim_is_made_first_large_enough_for_the_model_and_its_successor() -> None:
    subject = hub_pool(cache={})
    steps = steps_of(subject, known(subject))
    claim = only(steps, "PersistentVolumeClaim")
    assert claim["metadata"]["name"] == "chat-models"
    assert claim["spec"] == {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "33Gi"}}}
    assert claim["metadata"]["ownerReferences"][0]["name"] == "chat"
    assert not [each for each in steps.apply if each["kind"] in ("Job", "Deployment")]


def test_what_the_user_says_about_the_claim_arrives_and_a_retained_one_has_no_owner() -> None:
    asked = {"storageClassName": "fast", "accessModes": ["ReadWriteMany"], "storage": "100G"}
    subject = hub_pool(cache={"persistentVolumeClaim": asked, "retain": True})
    claim = only(steps_of(subject, known(subject)), "PersistentVolumeClaim")
    assert claim["spec"]["storageClassName"] == "fast"
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    assert int(claim["spec"]["resources"]["requests"]["storage"].rstrip("KMGi")) > 0
    assert "ownerReferences" not in claim["metadata"]


def test_a_model_that_does_not_fit_is_not_fetched() -> None:
    subject = hub_pool(cache={}, accelerator={"memory": "12Gi", "count": 1})
    steps = steps_of(subject, known(subject))
    assert steps.cache is None
    assert [each["kind"] for each in steps.apply] == ["ControllerRevision"]


def test_one_job_fetches_the_pinned_commit_with_the_token_as_a_file() -> None:
    subject = hub_pool(cache={}, model={"revision": "v1"})
    job = job_of(downloading(subject))
    spec = job["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    arguments = container["args"]
    assert arguments[:5] == ["download", "hf://Qwen/Qwen3-8B", "--revision", COMMIT, "--to"]
    assert arguments[arguments.index("--keep") + 1] == SNAPSHOT
    (secret,) = [each["secret"] for each in spec["volumes"] if "secret" in each]
    assert secret == {"secretName": "hf", "items": [{"key": "read.token", "path": "token"}]}
    assert arguments[arguments.index("--token-file") + 1] == "/etc/tidegate-hub/token"
    assert not any("TOKEN" in each["name"] for each in container["env"])
    assert not any(each["name"] == "HF_HUB_OFFLINE" for each in container["env"])
    (models,) = [each for each in container["volumeMounts"] if each["mountPath"] == "/models"]
    assert "readOnly" not in models
    assert spec["securityContext"]["fsGroup"] == spec["securityContext"]["runAsUser"]
    assert job["spec"]["activeDeadlineSeconds"] > 16 * GIB / 5_000_000


def test_a_download_bears_the_taints_that_engines_bear() -> None:
    subject = hub_pool(cache={}, pod={"tolerations": [{"key": "dedicated", "operator": "Exists"}]})
    tolerations = job_of(downloading(subject))["spec"]["template"]["spec"]["tolerations"]
    assert {each["key"] for each in tolerations} == {"dedicated", "nvidia.com/gpu"}


def test_the_volume_lands_on_a_node_that_has_the_accelerator() -> None:
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    subject = hub_pool(cache={}, pod={"affinity": {"nodeAffinity": required}})
    nodes = (
        Node("gpu-1", {"kubernetes.io/hostname": "gpu-1", "zone": "a"}, {"nvidia.com/gpu": "8"}),
        Node("cpu-1", {"kubernetes.io/hostname": "cpu-1", "zone": "a"}, {"cpu": "64"}),
    )
    affinity = job_of(downloading(subject, nodes=nodes))["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert {"key": "zone", "operator": "In", "values": ["a"]} in term["matchExpressions"]
    assert {"key": "kubernetes.io/hostname", "operator": "In", "values": ["gpu-1"]} in term["matchExpressions"]


@pytest.mark.parametrize(("modes", "is_beside"), [(["ReadWriteOnce"], True), (["ReadWriteMany"], False)])
def test_a_claim_of_one_node_is_filled_again_where_its_readers_are(modes: list[str], is_beside: bool) -> None:
    cache = {"persistentVolumeClaim": {"accessModes": modes}}
    changed = hub_pool(cache=cache, model={"revision": "v2"})
    observed = replace(filled(hub_pool(cache=cache)), pods=(pod(node="gpu-1"),))
    (job,) = [each for each in steps_of(changed, observed).apply if each["kind"] == "Job"]
    answer = inspected(found(NEXT_COMMIT), name=job["metadata"]["name"])
    job = only(steps_of(changed, replace(observed, inspections=(answer,))), "Job")
    affinity = job["spec"]["template"]["spec"].get("affinity", {})
    assert ("podAffinity" in affinity) is is_beside
    if is_beside:
        (term,) = affinity["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert term["topologyKey"] == "kubernetes.io/hostname"
        assert term["labelSelector"]["matchLabels"] == {"tidegate.dev/pool": "chat", "tidegate.dev/role": "engine"}


def test_nothing_is_deployed_before_the_model_is_there() -> None:
    subject = hub_pool(cache={})
    observed = downloading(subject)
    observed = replace(observed, downloads=(download(job_of(observed)),))
    steps = steps_of(subject, observed)
    assert steps.is_satisfied
    assert cache_condition(subject, observed).reason is Reason.DOWNLOADING


def test_engines_of_a_filled_cache_are_offline_read_it_and_see_no_token() -> None:
    subject = hub_pool(cache={})
    observed = filled(subject)
    deployment = observed.child("Deployment", "chat")
    assert deployment is not None
    spec = deployment["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert "initContainers" not in spec
    launch = EngineLaunch.from_args(container["args"][1:])
    assert launch.model == f"/models/models--Qwen--Qwen3-8B/snapshots/{COMMIT}"
    (volume,) = [each for each in spec["volumes"] if each["name"] == "models"]
    assert volume["persistentVolumeClaim"] == {"claimName": "chat-models", "readOnly": True}
    assert {"name": "HF_HUB_OFFLINE", "value": "1"} in container["env"]
    assert not any("secret" in each for each in spec["volumes"])
    assert cache_condition(subject, observed).reason is Reason.MODEL_CACHED


@pytest.mark.parametrize("retain", [False, True])
def test_a_filled_cache_leaves_nothing_to_do_and_its_job_goes(retain: bool) -> None:
    subject = hub_pool(cache={"retain": retain})
    observed = filled(subject)
    assert steps_of(subject, observed).is_satisfied
    assert not [each for each in observed.children if each["kind"] == "Job"]


def test_a_retained_claim_of_an_earlier_pool_is_taken_with_what_is_on_it() -> None:
    subject = hub_pool(cache={"retain": True})
    claim = filled(subject).cache_claim
    steps = steps_of(subject, known(subject, cache_claim=claim))
    assert steps.cache is not None
    assert steps.cache.is_ready
    assert "Deployment" in [each["kind"] for each in steps.apply]


def test_a_claim_that_was_made_anew_holds_nothing_and_is_filled_again() -> None:
    subject = hub_pool(cache={})
    observed = filled(subject)
    assert observed.cache_claim is not None
    bare = {
        **observed.cache_claim,
        "metadata": {**observed.cache_claim["metadata"], "uid": "claim-2", "annotations": {}},
    }
    steps = steps_of(subject, replace(observed, cache_claim=bare))
    assert only(steps, "Job")["metadata"]["labels"]["tidegate.dev/role"] == "download"


def test_a_strangers_claim_of_that_name_is_left_alone() -> None:
    subject = hub_pool(cache={})
    stranger = {"kind": "PersistentVolumeClaim", "metadata": {"name": "chat-models", "uid": "x"}, "spec": {}}
    steps = steps_of(subject, known(subject, cache_claim=stranger))
    assert steps.cache is not None
    assert steps.cache.reason is Reason.CHILD_NOT_OURS
    assert not [each for each in steps.apply if each["kind"] in ("PersistentVolumeClaim", "Job")]


@pytest.mark.parametrize(
    ("exit_code", "reason", "shown"),
    [
        (ExitCode.ACCESS_DENIED, "ModelGated", Reason.MODEL_GATED),
        (ExitCode.HUB_UNAVAILABLE, "HubThrottled", Reason.HUB_THROTTLED),
        (ExitCode.DISK_FULL, "CacheFull", Reason.CACHE_FULL),
        (137, "", Reason.DOWNLOAD_FAILED),
    ],
)
def test_a_failed_download_is_named_and_goes_on_later(exit_code: int, reason: str, shown: Reason) -> None:
    subject = hub_pool(cache={})
    observed = downloading(subject)
    words = TerminationMessage(reason=reason, message="because").encode() if reason else ""
    observed = replace(observed, downloads=(download(job_of(observed), exit_code, words),))
    assert cache_condition(subject, observed).reason is shown
    steps = steps_of(subject, observed)
    assert not steps.apply
    later = steps_of(subject, observed, NOW + timedelta(minutes=10))
    assert only(later, "Job")["metadata"]["name"].endswith("-2")


def test_a_job_that_ends_well_without_saying_what_it_fetched_proves_nothing() -> None:
    subject = hub_pool(cache={})
    observed = downloading(subject)
    observed = replace(observed, downloads=(download(job_of(observed), 0, ""),))
    steps = steps_of(subject, observed)
    assert steps.cache is not None
    assert not steps.cache.is_ready
    assert not [each for each in steps.apply if each["kind"] == "PersistentVolumeClaim"]


def test_a_job_that_passed_its_deadline_goes_on_where_it_ended() -> None:
    subject = hub_pool(cache={})
    observed = downloading(subject)
    late = download(job_of(observed), None, is_finished=True, finished_at=NOW, failure="Job was active longer than")
    observed = replace(observed, downloads=(late,))
    condition = cache_condition(subject, observed)
    assert condition.reason is Reason.DOWNLOAD_FAILED
    assert "active longer" in condition.message


def test_a_download_that_gets_no_pod_says_where_the_reason_is() -> None:
    subject = hub_pool(cache={})
    observed = downloading(subject)
    refused = download(job_of(observed), has_pod=False, created_at=NOW - timedelta(seconds=10))
    condition = cache_condition(subject, replace(observed, downloads=(refused,)))
    assert condition.reason is Reason.PODS_REFUSED
    assert f"`kubectl describe job {refused.name} -n team`" in condition.message


def test_a_volume_that_is_not_made_says_why() -> None:
    subject = hub_pool(cache={"persistentVolumeClaim": {"storageClassName": "none"}})
    observed = downloading(subject)
    trouble = Trouble(Reason.UNSCHEDULABLE, 'storageclass.storage.k8s.io "none" not found')
    observed = replace(observed, downloads=(download(job_of(observed), trouble=trouble),))
    assert 'storageclass.storage.k8s.io "none" not found' in cache_condition(subject, observed).message


@pytest.mark.parametrize(
    ("modes", "most", "reason"),
    [
        (["ReadWriteOnce"], 1, Reason.MODEL_CACHED),
        (["ReadWriteOnce"], 4, Reason.CACHE_ON_ONE_NODE),
        (["ReadWriteMany"], 4, Reason.MODEL_CACHED),
        (["ReadWriteOnce", "ReadOnlyMany"], 4, Reason.MODEL_CACHED),
    ],
)
def test_a_cache_that_serves_one_node_only_says_so(modes: list[str], most: int, reason: Reason) -> None:
    subject = hub_pool(cache={"persistentVolumeClaim": {"accessModes": modes}}, maxReplicas=most)
    condition = cache_condition(subject, filled(subject))
    assert (condition.status, condition.reason) == ("True", reason)


def test_the_next_revision_is_fetched_beside_the_one_that_serves_and_rolls_when_it_is_there() -> None:
    subject = hub_pool(cache={})
    changed = hub_pool(cache={}, model={"revision": "v2"})
    observed = filled(subject)
    (job,) = [each for each in steps_of(changed, observed).apply if each["kind"] == "Job"]
    answer = inspected(found(NEXT_COMMIT), name=job["metadata"]["name"])
    observed = replace(observed, inspections=(answer,))
    steps = steps_of(changed, observed)
    arguments = only(steps, "Job")["spec"]["template"]["spec"]["containers"][0]["args"]
    kept = [arguments[at + 1] for at, argument in enumerate(arguments) if argument == "--keep"]
    assert kept == [SNAPSHOT, f"Qwen/Qwen3-8B@{NEXT_COMMIT}"]
    assert not [each for each in steps.apply if each["kind"] == "Deployment"], "the old one serves on"
    observed = after(observed, steps)
    observed = replace(observed, downloads=(download(job_of(observed), 0, f"Qwen/Qwen3-8B@{NEXT_COMMIT}"),))
    observed = after(observed, steps_of(changed, observed))
    rolled = only(steps_of(changed, observed), "Deployment")
    assert NEXT_COMMIT in rolled["spec"]["template"]["spec"]["containers"][0]["args"][1]


def test_a_larger_model_makes_the_claim_larger_and_a_smaller_one_leaves_it() -> None:
    subject = hub_pool(cache={})
    claim = filled(subject).cache_claim
    sizes = []
    for num_bytes in (40 * GIB, 1 * GIB):
        observed = known(subject, found(NEXT_COMMIT, num_bytes), cache_claim=claim)
        claims = [each for each in steps_of(subject, observed).apply if each["kind"] == "PersistentVolumeClaim"]
        sizes += [each["spec"]["resources"]["requests"]["storage"] for each in claims]
    assert sizes[0] == "81Gi"
    assert set(sizes[1:]) <= {"33Gi"}


def test_a_cache_that_is_no_longer_asked_for_goes_once_no_template_reads_it() -> None:
    subject = hub_pool(cache={})
    observed = filled(subject)
    without = hub_pool()
    steps = steps_of(without, observed)
    assert not [each for each in steps.delete if each["kind"] == "PersistentVolumeClaim"], "the old pods read it"
    bare = tuple(
        each for each in observed.children if each["metadata"]["labels"].get("tidegate.dev/role") != "template"
    )
    steps = steps_of(without, replace(observed, children=bare))
    assert [each["metadata"]["name"] for each in steps.delete if each["kind"] == "PersistentVolumeClaim"] == [
        "chat-models"
    ]


def test_a_new_token_or_a_larger_claim_replaces_no_pod() -> None:
    observed = filled(hub_pool(cache={}))
    for changed in (
        hub_pool(cache={}, model={"tokenSecretRef": {"name": "other", "key": "t"}}),
        hub_pool(cache={"persistentVolumeClaim": {"storage": "200Gi"}, "retain": True}),
    ):
        steps = steps_of(changed, observed)
        assert not [each for each in steps.apply if each["kind"] in ("Deployment", "ControllerRevision", "Job")]


def test_a_pool_of_a_claim_is_rendered_as_it_always_was() -> None:
    deployment = settled(pool()).child("Deployment", "chat")
    assert deployment is not None
    spec = deployment["spec"]["template"]["spec"]
    assert "initContainers" not in spec
    assert spec["volumes"] == [
        {"name": "models", "persistentVolumeClaim": {"claimName": "models", "readOnly": True}},
        {"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}},
    ]
    assert json.dumps(spec).count("hub") == 0
