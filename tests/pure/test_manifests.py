"""Generated objects: restricted, complete, canonical, and patched last."""

from typing import Any

import pytest

from pool_cases import AFFINITY
from pools import NOW, SETTINGS, cpu_pool_manifest, inspected, pool, pool_manifest, stored
from restricted import violations
from tidegate_core.launch import EngineLaunch, RunnerKind
from tidegate_operator.api.pod import OUR_VARIABLES
from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.decisions.drift import is_satisfied, stamped
from tidegate_operator.decisions.engine_version import EngineDefaults
from tidegate_operator.decisions.plan import PlanSettings
from tidegate_operator.decisions.planning import plan
from tidegate_operator.decisions.scale import ScaleTiming
from tidegate_operator.manifests.merge import merge
from tidegate_operator.manifests.pod import Runtime, grace_seconds, startup_seconds
from tidegate_operator.resources import Manifest
from tidegate_operator.world.observed import Observed

FULL = {
    "model": {"uri": "pvc://models/dir/qwen", "servedNames": ["qwen3-8b", "q"], "chatTemplate": "{{ messages }}"},
    "traffic": {"promptTokens": 100, "outputTokens": 50},
    "queue": {"maxRequests": 7, "maxTokens": 90_000, "maxWaitSeconds": 9},
    "access": {"apiKeysSecretRef": {"name": "chat-keys", "key": "keys.txt"}, "trustFairnessHeader": True},
    "drain": {"timeoutSeconds": 33},
    "pod": {
        "nodeSelector": {"gpu": "l4"},
        "tolerations": [{"key": "dedicated", "operator": "Equal", "value": "llm"}],
        "affinity": AFFINITY,
        "priorityClassName": "high",
        "runtimeClassName": "nvidia",
        "imagePullSecrets": [{"name": "registry"}],
        "env": [
            {"name": "NCCL_DEBUG", "value": "INFO"},
            {"name": "HTTPS_PROXY", "valueFrom": {"secretKeyRef": {"name": "proxy", "key": "url"}}},
        ],
        "labels": {"team": "a", "tidegate.dev/pool": "stolen"},
        "annotations": {"note": "x"},
        "resources": {"requests": {"cpu": "1500m"}, "limits": {"memory": "24576Mi"}},
    },
}


def children(subject: InferencePool, settings: PlanSettings = SETTINGS) -> dict[str, Manifest]:
    (job,) = plan(subject, Observed(), settings, NOW).apply
    steps = plan(subject, Observed(inspections=(inspected(name=job["metadata"]["name"]),)), settings, NOW)
    return {each["kind"]: each for each in steps.apply}


def template(subject: InferencePool, settings: PlanSettings = SETTINGS) -> dict[str, Any]:
    return dict(children(subject, settings)["Deployment"]["spec"]["template"])


def container(subject: InferencePool, settings: PlanSettings = SETTINGS) -> dict[str, Any]:
    (only,) = template(subject, settings)["spec"]["containers"]
    return dict(only)


def engine_of(subject: InferencePool) -> dict[str, Any]:
    """The template of a pool whose inspection Job has another name than the usual pool's."""
    (job,) = plan(subject, Observed(), SETTINGS, NOW).apply
    found = inspected(name=job["metadata"]["name"])
    steps = plan(subject, Observed(inspections=(found,)), SETTINGS, NOW)
    return dict(next(each for each in steps.apply if each["kind"] == "Deployment")["spec"]["template"])


@pytest.mark.parametrize(
    "subject",
    [pool(), pool(**FULL), stored(cpu_pool_manifest())],
    ids=["smallest", "full", "cpu"],
)
def test_every_pod_is_restricted_and_cannot_reach_the_api(subject: InferencePool) -> None:
    (job,) = plan(subject, Observed(), SETTINGS, NOW).apply
    for spec in (engine_of(subject)["spec"], job["spec"]["template"]["spec"]):
        assert violations(spec) == []
        assert spec["automountServiceAccountToken"] is False
        assert spec["enableServiceLinks"] is False
        assert spec["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is True
        mounts = {mount["mountPath"]: mount for mount in spec["containers"][0]["volumeMounts"]}
        assert mounts["/models"]["readOnly"] is True
        assert "/tmp" in mounts


def test_the_engines_arguments_are_a_launch_contract_with_the_sizing_in_it() -> None:
    spec = engine_of(pool(**FULL))["spec"]
    verb, *args = spec["containers"][0]["args"]
    launch = EngineLaunch.from_args(args)
    assert verb == "serve"
    assert launch.model == "/models/dir/qwen"
    assert launch.served_name == ("qwen3-8b", "q")
    assert launch.chat_template == "/etc/tidegate/chat_template.jinja"
    assert (launch.prompt_tokens, launch.output_tokens, launch.max_queue, launch.max_wait_seconds) == (100, 50, 7, 9)
    assert launch.drain_seconds == 33
    assert launch.drain_token_sha256 == ("ab" * 32,)
    assert launch.context is not None
    assert launch.slots is not None
    assert launch.kv_memory is None, "on CUDA the engine measures"


def test_a_cpu_pool_is_told_its_kv_memory_and_gets_its_whole_limit() -> None:
    subject = stored(cpu_pool_manifest())
    (job,) = plan(subject, Observed(), SETTINGS, NOW).apply
    steps = plan(subject, Observed(inspections=(inspected(name=job["metadata"]["name"]),)), SETTINGS, NOW)
    engine = steps.apply[-1]["spec"]["template"]["spec"]["containers"][0]
    launch = EngineLaunch.from_args(engine["args"][1:])
    assert launch.kv_memory is not None
    assert engine["resources"]["requests"]["memory"] == engine["resources"]["limits"]["memory"] == "40Gi"
    assert "nvidia.com/gpu" not in engine["resources"]["limits"]


def test_a_simulated_engine_gets_its_kv_memory_too() -> None:
    simulated = PlanSettings(EngineDefaults(Runtime("e", {}), runner=RunnerKind.SIM), ScaleTiming())
    assert EngineLaunch.from_args(container(pool(), simulated)["args"][1:]).kv_memory is not None


def test_what_the_user_says_about_pods_arrives() -> None:
    rendered = engine_of(pool(**FULL))
    assert rendered["metadata"]["labels"]["team"] == "a"
    assert rendered["metadata"]["labels"]["tidegate.dev/pool"] == "chat", "labels we select by cannot be taken"
    assert rendered["metadata"]["annotations"] == {"note": "x"}
    spec = rendered["spec"]
    assert spec["nodeSelector"] == {"gpu": "l4"}
    assert spec["affinity"] == AFFINITY
    assert spec["priorityClassName"] == "high"
    assert spec["runtimeClassName"] == "nvidia"
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert {"key": "dedicated", "operator": "Equal", "value": "llm"} in spec["tolerations"]
    assert {"key": "nvidia.com/gpu", "operator": "Exists"} in spec["tolerations"]


def test_api_keys_are_mounted_where_the_engine_reads_them_and_can_change_in_place() -> None:
    spec = engine_of(pool(**FULL))["spec"]
    (volume,) = [each for each in spec["volumes"] if "secret" in each]
    (mount,) = [each for each in spec["containers"][0]["volumeMounts"] if each["name"] == volume["name"]]
    launch = EngineLaunch.from_args(spec["containers"][0]["args"][1:])
    (item,) = volume["secret"]["items"]
    assert (volume["secret"]["secretName"], item["key"]) == ("chat-keys", "keys.txt")
    assert launch.api_keys_file == f"{mount['mountPath']}/{item['path']}"
    assert "subPath" not in mount, "such a mount is never updated"
    assert mount["readOnly"]
    assert (launch.trust_fairness_header, launch.max_queue_tokens) == (True, 90_000)


def test_only_engines_see_the_api_keys_and_only_where_they_are_asked_for() -> None:
    (job,) = plan(pool(**FULL), Observed(), SETTINGS, NOW).apply
    volumes = [*job["spec"]["template"]["spec"]["volumes"], *engine_of(pool())["spec"]["volumes"]]
    assert not any("secret" in each for each in volumes)
    assert EngineLaunch.from_args(container(pool())["args"][1:]).api_keys_file is None


def test_an_inspection_is_placed_as_the_engines_are() -> None:
    (job,) = plan(pool(**FULL), Observed(), SETTINGS, NOW).apply
    inspection, engine = job["spec"]["template"]["spec"], engine_of(pool(**FULL))["spec"]
    placement = ("nodeSelector", "tolerations", "affinity", "priorityClassName", "runtimeClassName", "imagePullSecrets")
    for field in placement:
        assert inspection[field] == engine[field]
    assert {"key": "nvidia.com/gpu", "operator": "Exists"} in inspection["tolerations"]


def test_variables_of_the_user_reach_both_pods_beside_ours_and_a_secret_only_by_reference() -> None:
    (job,) = plan(pool(**FULL), Observed(), SETTINGS, NOW).apply
    for spec in (engine_of(pool(**FULL))["spec"], job["spec"]["template"]["spec"]):
        variables = {each["name"]: each for each in spec["containers"][0]["env"]}
        assert variables["NCCL_DEBUG"] == {"name": "NCCL_DEBUG", "value": "INFO"}
        assert "value" not in variables["HTTPS_PROXY"]
        assert variables["HTTPS_PROXY"]["valueFrom"]["secretKeyRef"] == {"name": "proxy", "key": "url"}
        assert variables["HOME"]["value"] == "/tmp"


@pytest.mark.parametrize("spec", [{}, FULL], ids=["smallest", "full"])
def test_every_variable_that_we_set_is_one_that_users_may_not(spec: dict[str, Any]) -> None:
    (job,) = plan(pool(**spec), Observed(), SETTINGS, NOW).apply
    theirs = {each["name"] for each in spec.get("pod", {}).get("env", ())}
    for pod_spec in (engine_of(pool(**spec))["spec"], job["spec"]["template"]["spec"]):
        ours = {each["name"] for each in pod_spec["containers"][0]["env"]} - theirs
        assert ours <= set(OUR_VARIABLES)


def test_pods_read_the_model_from_their_volume_and_never_ask_a_hub() -> None:
    (job,) = plan(pool(), Observed(), SETTINGS, NOW).apply
    for spec in (engine_of(pool())["spec"], job["spec"]["template"]["spec"]):
        assert {"name": "HF_HUB_OFFLINE", "value": "1"} in spec["containers"][0]["env"]


def test_what_pods_write_is_bounded_so_that_no_node_runs_out_of_disk() -> None:
    (job,) = plan(pool(), Observed(), SETTINGS, NOW).apply
    for spec in (engine_of(pool())["spec"], job["spec"]["template"]["spec"]):
        resources = spec["containers"][0]["resources"]
        assert "ephemeral-storage" in resources["requests"]
        assert "ephemeral-storage" in resources["limits"]
        assert all("sizeLimit" in volume["emptyDir"] for volume in spec["volumes"] if "emptyDir" in volume)


@pytest.mark.parametrize(("asked", "limit"), [("500Mi", "2Gi"), ("10Gi", "10Gi"), ("3000Mi", "3000Mi")])
def test_a_pod_may_ask_for_more_disk_than_is_usually_its_limit(asked: str, limit: str) -> None:
    resources = container(pool(pod={"resources": {"requests": {"ephemeral-storage": asked}}}))["resources"]
    assert (resources["requests"]["ephemeral-storage"], resources["limits"]["ephemeral-storage"]) == (asked, limit)


def test_quantities_are_spelled_as_the_api_server_spells_them() -> None:
    resources = engine_of(pool(**FULL))["spec"]["containers"][0]["resources"]
    assert resources["limits"]["memory"] == "24Gi"
    assert resources["requests"]["cpu"] == "1500m"
    assert resources["limits"]["nvidia.com/gpu"] == "1"


def test_list_items_carry_the_keys_that_server_side_apply_needs() -> None:
    found = children(pool())
    assert all("protocol" in port for port in found["Service"]["spec"]["ports"])
    assert all("protocol" in port for port in container(pool())["ports"])


def test_probes_wait_for_the_weights_and_the_grace_for_the_drain() -> None:
    engine = container(pool())
    probe = engine["startupProbe"]
    assert probe["failureThreshold"] * probe["periodSeconds"] >= startup_seconds(16 * 10**9) > startup_seconds(10**9)
    assert startup_seconds(16 * 10**9) > 16 * 10**9 / 15e6 + 180, "a network volume that gives 15 MB a second"
    assert probe["httpGet"]["port"] == 8001
    spec = template(pool(drain={"timeoutSeconds": 300}))["spec"]
    assert spec["terminationGracePeriodSeconds"] == grace_seconds(300) > 300 + 5
    assert engine["lifecycle"]["preStop"]["sleep"]["seconds"] > 0


def test_every_probe_asks_the_admin_port_and_none_the_api() -> None:
    found = {name: probe["httpGet"] for name, probe in container(pool()).items() if name.endswith("Probe")}
    assert {name: (probe["path"], probe["port"]) for name, probe in found.items()} == {
        "startupProbe": ("/readyz", 8001),
        "readinessProbe": ("/readyz", 8001),
        "livenessProbe": ("/livez", 8001),
    }


def test_a_rollout_may_take_as_long_as_a_large_image_and_a_load_that_is_slow() -> None:
    found = children(pool())
    assert found["ControllerRevision"]["data"]["progress_deadline_seconds"] >= 600 + startup_seconds(16 * 10**9)
    assert found["Deployment"]["spec"]["progressDeadlineSeconds"] > 10**9, "no second deadline beside ours"


def test_the_service_leaves_draining_pods_out_and_the_deployment_keeps_them() -> None:
    found = children(pool())
    assert found["Service"]["spec"]["selector"]["tidegate.dev/serving"] == "true"
    assert "tidegate.dev/serving" not in found["Deployment"]["spec"]["selector"]["matchLabels"]
    labels = found["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert found["Service"]["spec"]["selector"].items() <= labels.items()


def test_every_child_is_in_the_pools_namespace_owned_and_labelled() -> None:
    for child in children(pool()).values():
        assert child["metadata"]["namespace"] == "team"
        (owner,) = child["metadata"]["ownerReferences"]
        assert owner["controller"] is True
        assert owner["blockOwnerDeletion"] is True
        assert child["metadata"]["labels"]["tidegate.dev/pool"] == "chat"


def test_names_stay_legal_for_the_longest_pool_name() -> None:
    name = "a" * 40
    subject = stored(pool_manifest(name, model={"uri": "pvc://models/qwen", "chatTemplate": "x"}))
    (job,) = plan(subject, Observed(), SETTINGS, NOW).apply
    found = inspected(name=job["metadata"]["name"])
    for child in (job, *plan(subject, Observed(inspections=(found,)), SETTINGS, NOW).apply):
        assert len(child["metadata"]["name"]) <= 63


def test_the_settings_patch_is_merged_last_into_every_pod() -> None:
    patch = {
        "spec": {
            "containers": [{"name": "engine", "command": ["/opt/venv/bin/python", "-m", "tidegate_cli"],
                            "env": [{"name": "HOME", "value": "/work"}],
                            "volumeMounts": [{"name": "venv", "mountPath": "/opt/venv"}]}],
            "volumes": [{"name": "venv", "persistentVolumeClaim": {"claimName": "venv"}}],
            "priorityClassName": None,
        }
    }  # fmt: skip
    patched = PlanSettings(EngineDefaults(Runtime("e", patch)), ScaleTiming())
    (job,) = plan(pool(), Observed(), patched, NOW).apply
    for spec in (template(pool(), patched)["spec"], job["spec"]["template"]["spec"]):
        (only,) = spec["containers"]
        assert only["command"][0] == "/opt/venv/bin/python"
        assert {"name": "HOME", "value": "/work"} in only["env"]
        assert [volume["name"] for volume in spec["volumes"]] == ["models", "tmp", "venv"]
        assert only["image"] == "e"


@pytest.mark.parametrize(
    ("base", "patch", "merged"),
    [
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}}, {"a": {"b": 3, "c": 2}}),
        ({"a": 1, "b": 2}, {"b": None}, {"a": 1}),
        ({"args": [1, 2]}, {"args": [3]}, {"args": [3]}),
        ({"env": [{"name": "A"}]}, {"env": [{"name": "B"}]}, {"env": [{"name": "A"}, {"name": "B"}]}),
        (
            {"env": [{"name": "A", "value": 1}]},
            {"env": [{"name": "A", "value": 2}]},
            {"env": [{"name": "A", "value": 2}]},
        ),
        ({}, {"volumes": [{"name": "v"}]}, {"volumes": [{"name": "v"}]}),
    ],
    ids=["deep", "null removes", "plain lists are replaced", "named lists grow", "named items merge", "absent"],
)
def test_patches_merge_as_a_strategic_merge_does(base: Manifest, patch: Manifest, merged: Manifest) -> None:
    before = repr(base)
    assert merge(base, patch) == merged
    assert repr(base) == before


def test_an_object_without_a_field_that_we_stopped_asking_for_is_applied_again() -> None:
    old = stamped({"metadata": {"name": "x"}, "spec": {"a": 1, "b": 2}})
    live = {**old, "status": {}}
    assert is_satisfied(old, live)
    assert not is_satisfied(stamped({"metadata": {"name": "x"}, "spec": {"a": 1}}), live)


def test_what_others_put_into_lists_that_go_by_names_is_left_to_them() -> None:
    ours = {"name": "engine", "args": ["serve"], "env": [{"name": "HOME", "value": "/tmp"}],
            "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}]}  # fmt: skip
    wanted = stamped({"metadata": {"name": "x"}, "spec": {"containers": [ours], "tolerations": [{"key": "gpu"}]}})
    theirs = {
        **ours,
        "env": [{"name": "FOO", "value": "bar"}, *ours["env"]],
        "volumeMounts": [{"name": "tmp", "mountPath": "/var/tmp"}, *ours["volumeMounts"]],
    }

    def is_left(**spec: Any) -> bool:
        return is_satisfied(wanted, {**wanted, "spec": {**wanted["spec"], **spec}})

    assert is_left(containers=[{"name": "mesh"}, theirs])
    assert not is_left(containers=[{"name": "mesh"}])
    assert not is_left(containers=[{**theirs, "env": [{"name": "HOME", "value": "/root"}]}])
    assert not is_left(containers=[{**theirs, "args": ["serve", "--more"]}]), "a list without names is all ours"
    assert not is_left(tolerations=[{"key": "gpu"}, {"key": "more"}])


def test_empty_values_that_the_server_drops_are_no_difference() -> None:
    wanted = stamped({"metadata": {"name": "x"}, "spec": {"a": 1, "empty": {}}})
    assert is_satisfied(wanted, {"metadata": wanted["metadata"], "spec": {"a": 1}})
