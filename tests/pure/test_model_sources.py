"""Where a model comes from, as inspections and pods see it: a claim, an image, a hub with and without a cache."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from hub_pools import COMMIT, GIB, NEXT_COMMIT, NUM_BYTES, TOKEN, found, hub_pool
from pools import NOW, SETTINGS, carried_out, inspected, pod, pool
from restricted import violations
from shapes import shape_of
from tidegate_core.launch import EngineLaunch
from tidegate_core.quantity import parse_bytes
from tidegate_core.termination import ExitCode, TerminationMessage
from tidegate_operator.api.conditions import ConditionType
from tidegate_operator.api.reasons import Reason
from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.decisions.plan import Plan, PlanSettings
from tidegate_operator.decisions.planning import plan
from tidegate_operator.report.status import status
from tidegate_operator.resources import Manifest
from tidegate_operator.world.observed import Observed
from tidegate_operator.world.readers import read_pod

MIRROR = PlanSettings(
    replace(SETTINGS.engine, runtime=replace(SETTINGS.engine.runtime, hub_endpoint="https://mirror.example")),
    SETTINGS.timing,
)


def job(subject: InferencePool, settings: PlanSettings = SETTINGS) -> Manifest:
    (only,) = plan(subject, Observed(), settings, NOW).apply
    return only


def answered(
    subject: InferencePool, message: str = "", exit_code: int = 0, settings: PlanSettings = SETTINGS, attempt: int = 1
) -> Observed:
    name = job(subject, settings)["metadata"]["name"][:-1]
    return Observed(inspections=(inspected(message or found(), exit_code, attempt, name=f"{name}{attempt}"),))


def engine_spec(subject: InferencePool, settings: PlanSettings = SETTINGS, message: str = "") -> dict[str, Any]:
    steps = plan(subject, answered(subject, message, settings=settings), settings, NOW)
    return dict(next(each for each in steps.apply if each["kind"] == "Deployment")["spec"]["template"]["spec"])


def image_pool(uri: str = "oci://ghcr.io/org/qwen:1.0#models/qwen", **model: Any) -> InferencePool:
    return pool(model={"uri": uri, **model})


def named(items: Any, name: str) -> Any:
    return next(each for each in items if each["name"] == name)


def said(reason: str, retry_after_seconds: int | None = None) -> str:
    return TerminationMessage(reason=reason, message="because", retry_after_seconds=retry_after_seconds).encode()


def test_an_image_is_a_volume_of_inspection_and_engine_alike() -> None:
    subject = image_pool(pullPolicy="Always")
    inspection = job(subject)["spec"]["template"]["spec"]
    engine = engine_spec(subject, message=shape_of().to_json())
    for spec in (inspection, engine):
        volume = named(spec["volumes"], "models")
        assert volume["image"] == {"reference": "ghcr.io/org/qwen:1.0", "pullPolicy": "Always"}
        assert violations(spec) == []
    assert inspection["containers"][0]["args"][:2] == ["inspect", "/models/models/qwen"]
    assert EngineLaunch.from_args(engine["containers"][0]["args"][1:]).model == "/models/models/qwen"


def test_an_image_with_the_model_at_its_root_is_pulled_as_the_cluster_does() -> None:
    subject = image_pool("oci://ghcr.io/org/qwen@sha256:" + "a" * 64)
    assert named(job(subject)["spec"]["template"]["spec"]["volumes"], "models")["image"] == {
        "reference": "ghcr.io/org/qwen@sha256:" + "a" * 64
    }
    assert job(subject)["spec"]["template"]["spec"]["containers"][0]["args"][1] == "/models"


def test_an_inspection_of_a_hubs_model_needs_no_volume_and_has_its_token_as_a_file() -> None:
    spec = job(hub_pool(model={"revision": "v1"}))["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    token = ["--token-file", "/etc/tidegate-hub/token"]
    assert container["args"] == [
        "inspect", "hf://Qwen/Qwen3-8B", "--revision", "v1", *token, "--termination-message",
    ]  # fmt: skip
    secret = {"secretName": TOKEN["name"], "items": [{"key": TOKEN["key"], "path": "token"}]}
    assert named(spec["volumes"], "hub-token")["secret"] == secret
    assert {volume["name"] for volume in spec["volumes"]} == {"tmp", "hub-token"}
    assert violations(spec) == []
    assert not any("TOKEN" in variable["name"] for variable in container["env"])


def test_the_operators_mirror_reaches_whoever_asks_the_hub_and_nobody_else() -> None:
    endpoint = {"name": "HF_ENDPOINT", "value": "https://mirror.example"}
    subject = hub_pool()
    assert endpoint in job(subject, MIRROR)["spec"]["template"]["spec"]["containers"][0]["env"]
    spec = engine_spec(subject, MIRROR)
    assert endpoint in named(spec["initContainers"], "download")["env"]
    assert endpoint not in named(spec["containers"], "engine")["env"]
    assert endpoint not in job(pool(), MIRROR)["spec"]["template"]["spec"]["containers"][0]["env"]


def test_a_pools_own_endpoint_wins() -> None:
    subject = hub_pool(pod={"env": [{"name": "HF_ENDPOINT", "value": "http://own.example"}]})
    variables = job(subject, MIRROR)["spec"]["template"]["spec"]["containers"][0]["env"]
    assert [each["value"] for each in variables if each["name"] == "HF_ENDPOINT"] == ["http://own.example"]


def test_without_a_cache_each_pod_fetches_the_pinned_commit_before_its_engine_starts_offline() -> None:
    spec = engine_spec(hub_pool(model={"revision": "main"}))
    fetch, engine = named(spec["initContainers"], "download"), named(spec["containers"], "engine")
    assert fetch["args"][:4] == ["download", "hf://Qwen/Qwen3-8B", "--revision", COMMIT]
    assert "readOnly" not in named(fetch["volumeMounts"], "models")
    assert named(engine["volumeMounts"], "models")["readOnly"]
    assert {"name": "HF_HUB_OFFLINE", "value": "1"} in engine["env"]
    assert not any(each["name"] == "HF_HUB_OFFLINE" for each in fetch["env"])
    assert any(each["name"] == "hub-token" for each in fetch["volumeMounts"])
    assert not any(each["name"] == "hub-token" for each in engine["volumeMounts"]), "an engine needs no token"
    assert "nvidia.com/gpu" not in str(fetch["resources"])
    assert EngineLaunch.from_args(engine["args"][1:]).model.endswith(f"/snapshots/{COMMIT}")
    assert violations(spec) == []


def test_a_gguf_file_is_fetched_and_served_by_its_name() -> None:
    spec = engine_spec(hub_pool(), message=found(file="qwen-Q8.gguf"))
    assert spec["initContainers"][0]["args"][1] == "hf://Qwen/Qwen3-8B/qwen-Q8.gguf"
    assert EngineLaunch.from_args(spec["containers"][0]["args"][1:]).model.endswith(f"/{COMMIT}/qwen-Q8.gguf")


def test_a_node_must_have_room_for_what_a_pod_fetches() -> None:
    spec = engine_spec(hub_pool())
    for container in (*spec["containers"], *spec["initContainers"]):
        for kind in ("requests", "limits"):
            assert parse_bytes(container["resources"][kind]["ephemeral-storage"]) > NUM_BYTES
    assert NUM_BYTES < parse_bytes(named(spec["volumes"], "models")["emptyDir"]["sizeLimit"]) < NUM_BYTES + 2 * GIB


def test_what_a_settings_patch_brings_is_there_for_the_download_too() -> None:
    mount = {"name": "certificates", "mountPath": "/etc/ssl/private-ca"}
    patch = {
        "spec": {"containers": [{"name": "engine", "volumeMounts": [mount]}], "volumes": [{"name": "certificates"}]}
    }
    runtime = replace(SETTINGS.engine.runtime, pod_patch=patch)
    spec = engine_spec(hub_pool(), PlanSettings(replace(SETTINGS.engine, runtime=runtime), SETTINGS.timing))
    assert mount in spec["initContainers"][0]["volumeMounts"]


@pytest.mark.parametrize(
    ("reason", "exit_code"),
    [
        (Reason.MODEL_GATED, ExitCode.ACCESS_DENIED),
        (Reason.TOKEN_INVALID, ExitCode.ACCESS_DENIED),
        (Reason.MODEL_NOT_FOUND, ExitCode.MODEL_UNREACHABLE),
        (Reason.REVISION_NOT_FOUND, ExitCode.MODEL_UNREACHABLE),
        (Reason.HUB_THROTTLED, ExitCode.HUB_UNAVAILABLE),
        (Reason.HUB_UNREACHABLE, ExitCode.HUB_UNAVAILABLE),
    ],
)
def test_what_a_hub_refuses_is_the_reason_and_is_tried_again(reason: Reason, exit_code: int) -> None:
    subject = hub_pool()
    observed = answered(subject, said(reason), exit_code)
    model = plan(subject, observed, SETTINGS, NOW).model
    assert model is not None
    assert (model.reason, model.is_final, model.inspected) == (reason, False, None)
    assert plan(subject, observed, SETTINGS, NOW + timedelta(minutes=10)).apply


def wait_seconds(subject: InferencePool, observed: Observed) -> float:
    return plan(subject, observed, SETTINGS, NOW).requeue_after_seconds


@pytest.mark.parametrize("seconds", [31_536_000, 10**14, 10**400])
def test_a_hub_that_asks_for_a_year_is_asked_again_within_hours(seconds: int) -> None:
    subject = hub_pool()
    words = said("HubThrottled", 7).replace(":7}", f":{seconds}}}")
    steps = plan(subject, answered(subject, words, ExitCode.HUB_UNAVAILABLE), SETTINGS, NOW)
    assert 3600 <= steps.requeue_after_seconds <= 2 * 3600


def test_a_throttling_hub_is_left_alone_as_long_as_it_asks_and_pools_do_not_return_in_step() -> None:
    subject = hub_pool()
    once = answered(subject, said("HubThrottled", 120), ExitCode.HUB_UNAVAILABLE)
    assert 120 <= wait_seconds(subject, once) <= 180
    waits = set()
    for uid in ("a", "b", "c", "d"):
        (inspection,) = once.inspections
        waits.add(wait_seconds(subject, replace(once, inspections=(replace(inspection, uid=uid),))))
    assert len(waits) == 4


def test_a_corrected_revision_or_token_is_a_new_inspection() -> None:
    another = {"name": "b", "key": "k"}
    names = {
        job(each)["metadata"]["name"]
        for each in (hub_pool(), hub_pool(model={"revision": "v1"}), hub_pool(model={"tokenSecretRef": another}))
    }
    assert len(names) == 3


def test_a_model_that_an_older_engine_did_not_serve_is_looked_at_again_by_a_newer_one() -> None:
    subject = pool()
    (inspection,) = answered(subject, said("ModelUnsupported"), ExitCode.MODEL_UNSUPPORTED).inspections
    observed = Observed(inspections=(inspection,))
    old = plan(subject, observed, SETTINGS, NOW + timedelta(days=1))
    assert old.model is not None
    assert old.model.is_final
    assert not old.apply
    newer = PlanSettings(
        replace(SETTINGS.engine, runtime=replace(SETTINGS.engine.runtime, image="engine:2")), SETTINGS.timing
    )
    (again,) = plan(subject, observed, newer, NOW + timedelta(days=1)).apply
    assert again["spec"]["template"]["spec"]["containers"][0]["image"] == "engine:2"


def settle(subject: InferencePool, observed: Observed) -> tuple[Observed, Plan]:
    for _ in range(4):
        steps = plan(subject, observed, SETTINGS, NOW)
        observed = carried_out(observed, steps)
    return observed, plan(subject, observed, SETTINGS, NOW)


def test_the_commit_is_pinned_in_status_and_in_pods_whatever_the_branch_says_later() -> None:
    subject = hub_pool(model={"revision": "main"})
    observed, steps = settle(subject, answered(subject))
    assert steps.is_satisfied
    shown = status(subject, observed, steps, (), NOW).model
    assert shown is not None
    assert shown.revision == COMMIT
    forgotten = tuple(
        each for each in observed.children if each["metadata"]["labels"].get("tidegate.dev/role") != "model"
    )
    again = replace(observed, children=forgotten, inspections=answered(subject, found(NEXT_COMMIT)).inspections)
    again, steps = settle(subject, again)
    deployment = again.child("Deployment", "chat")
    assert deployment is not None
    assert COMMIT in str(deployment["spec"]["template"]["spec"]["containers"])
    shown = status(subject, again, steps, (), NOW).model
    assert shown is not None
    assert shown.revision == COMMIT


def test_a_message_says_what_every_replica_will_fetch() -> None:
    subject = hub_pool()
    model = plan(subject, answered(subject), SETTINGS, NOW).model
    assert model is not None
    assert COMMIT in model.message
    assert "every replica fetches 16 GiB" in model.message


def test_a_missing_token_is_named_where_pods_wait_for_it() -> None:
    subject = hub_pool()
    name = job(subject)["metadata"]["name"]
    waiting = inspected(name=name, is_finished=False, finished_at=None, termination=None)
    model = plan(subject, Observed(inspections=(waiting,)), SETTINGS, NOW).model
    assert model is not None
    assert "its pod starts once there is a Secret hf with the entry read.token" in model.message
    running = replace(waiting, is_running=True)
    model = plan(subject, Observed(inspections=(running,)), SETTINGS, NOW).model
    assert model is not None
    assert "Secret" not in model.message


def test_pods_that_fetch_are_counted() -> None:
    subject = hub_pool(replicas=2, maxReplicas=2)
    observed, steps = settle(subject, answered(subject))
    assert steps.revisions.current is not None
    template = steps.revisions.current.template_hash
    facts: Any = {"template": template, "ready_since": None, "is_running": False}
    pods = (pod("chat-a", is_fetching=True, **facts), pod("chat-b", **facts))
    observed = replace(observed, pods=pods)
    steps = plan(subject, observed, SETTINGS, NOW)
    shown = status(subject, observed, steps, (), NOW).condition(ConditionType.PROGRESSING)
    assert shown is not None
    assert "; 1 fetch the model; pods start once there is a Secret hf with the entry read.token" in shown.message


def test_a_pod_whose_download_fails_shows_the_hubs_reason() -> None:
    ended = {"exitCode": 7, "reason": "Error", "message": said("ModelGated")}
    waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
    manifest = {
        "metadata": {"name": "a", "uid": "a", "creationTimestamp": "2026-11-29T12:00:00Z", "labels": {}},
        "status": {
            "phase": "Pending",
            "initContainerStatuses": [{"name": "download", "state": waiting, "lastState": {"terminated": ended}}],
            "containerStatuses": [{"name": "engine", "state": {"waiting": {"reason": "PodInitializing"}}}],
        },
    }
    trouble = read_pod(manifest).trouble
    assert trouble is not None
    assert (trouble.reason, trouble.message) == (Reason.MODEL_GATED, "because")
