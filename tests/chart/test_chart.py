"""The chart renders to what the operator needs: its settings, its rights, a restricted pod, the CRD."""

import base64
import json
from typing import Any

import pytest
import yaml

from e2e.installation.chart import CHART, ChartRefused, Manifest, lint_chart, render_chart
from restricted import violations
from tidegate_operator.api.crd import custom_resource_definition
from tidegate_operator.rbac import CLUSTER_RULES, NAMESPACED_RULES, manifest
from tidegate_operator.settings import OperatorSettings, variable_names

EVERYTHING = {
    "watchNamespaces": ["team-a", "team-b"],
    "imagePullSecrets": [{"name": "pull"}],
    "engine": {
        "image": "engine:2",
        "imagePullPolicy": "Always",
        "runner": "sim",
        "simPreemptionsPerMinute": 6,
        "podTemplatePatch": {"spec": {"hostname": 'it\'s "quoted"'}},
    },
    "scrape": {"intervalSeconds": 2.5, "idleIntervalSeconds": 10, "timeoutSeconds": 1},
    "reconcile": {"resyncSeconds": 60, "workers": 2},
    "logLevel": "DEBUG",
    "port": 9090,
    "nodeSelector": {"a": "b"},
    "tolerations": [{"operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "priorityClassName": "high",
    "podLabels": {"team": "ml"},
    "podAnnotations": {"note": "x"},
    "serviceAccount": {"name": "robot", "annotations": {"iam": "x"}},
    "extraEnv": [{"name": "PYTHONPATH", "value": "/src"}],
    "extraVolumes": [{"name": "venv", "persistentVolumeClaim": {"claimName": "venv", "readOnly": True}}],
    "extraVolumeMounts": [{"name": "venv", "mountPath": "/opt/venv", "readOnly": True}],
}


def one(manifests: list[Manifest], kind: str) -> Manifest:
    (found,) = (each for each in manifests if each["kind"] == kind)
    return found


def pod_spec(manifests: list[Manifest]) -> Manifest:
    return one(manifests, "Deployment")["spec"]["template"]["spec"]


def environment(manifests: list[Manifest]) -> dict[str, str]:
    (container,) = pod_spec(manifests)["containers"]
    return {each["name"]: each.get("value", "") for each in container["env"]}


def test_the_chart_has_no_lint_findings() -> None:
    assert lint_chart() == []


@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["defaults", "everything set"])
def test_the_operators_pod_is_restricted(values: dict[str, Any]) -> None:
    spec = pod_spec(render_chart(values))
    assert violations(spec) == []
    (container,) = spec["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert {"name": "tmp", "mountPath": "/tmp"} in container["volumeMounts"]
    assert spec["securityContext"]["runAsUser"] >= 10_000


@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["defaults", "everything set"])
def test_every_variable_is_a_setting(values: dict[str, Any]) -> None:
    ours = {name for name in environment(render_chart(values)) if name.startswith("TIDEGATE_")}
    assert ours <= set(variable_names())


def test_values_reach_the_settings_unharmed() -> None:
    given = environment(render_chart(EVERYTHING))
    assert set(variable_names()) - set(given) == set()
    assert json.loads(given["TIDEGATE_ENGINE__POD_TEMPLATE_PATCH"]) == EVERYTHING["engine"]["podTemplatePatch"]
    assert json.loads(given["TIDEGATE_NAMESPACES"]) == ["team-a", "team-b"]
    assert (given["TIDEGATE_SCRAPE__INTERVAL_SECONDS"], given["TIDEGATE_RECONCILE__WORKERS"]) == ("2.5", "2")
    assert (given["TIDEGATE_ENGINE__IMAGE"], given["TIDEGATE_ENGINE__SIM_PREEMPTIONS_PER_MINUTE"]) == ("engine:2", "6")


def test_the_engines_image_is_the_operators_unless_another_is_given() -> None:
    manifests = render_chart({"image": {"repository": "mirror/tidegate", "tag": "1.2.3"}})
    assert pod_spec(manifests)["containers"][0]["image"] == "mirror/tidegate:1.2.3"
    assert environment(manifests)["TIDEGATE_ENGINE__IMAGE"] == "mirror/tidegate:1.2.3"


def test_probes_ask_the_port_that_the_operator_listens_on() -> None:
    manifests = render_chart({"port": 9090})
    (container,) = pod_spec(manifests)["containers"]
    assert container["ports"] == [{"name": "http", "containerPort": 9090, "protocol": "TCP"}]
    assert environment(manifests)["TIDEGATE_PORT"] == "9090"
    assert {container[probe]["httpGet"]["port"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")} == {
        "http"
    }


def test_an_upgrade_ends_the_old_operator_before_the_new_one_starts() -> None:
    deployment = one(render_chart(EVERYTHING), "Deployment")["spec"]
    assert (deployment["replicas"], deployment["strategy"]) == (1, {"type": "Recreate"})


def test_the_drain_token_is_random_and_mounted_where_the_operator_looks() -> None:
    tokens = {base64.b64decode(one(render_chart(), "Secret")["data"]["token"]) for _ in range(3)}
    assert len(tokens) == 3
    assert all(len(token) == 48 for token in tokens)
    spec = pod_spec(render_chart())
    file = environment(render_chart())["TIDEGATE_DRAIN_TOKEN_FILE"]
    (mount,) = (each for each in spec["containers"][0]["volumeMounts"] if file == f"{each['mountPath']}/token")
    (volume,) = (each for each in spec["volumes"] if each["name"] == mount["name"])
    assert volume["secret"]["secretName"] == one(render_chart(), "Secret")["metadata"]["name"]
    assert file == str(OperatorSettings.model_fields["drain_token_file"].default)


def test_a_given_drain_token_is_used_and_none_is_made() -> None:
    manifests = render_chart({"drainToken": {"existingSecret": "mine"}})
    assert not [each for each in manifests if each["kind"] == "Secret"]
    assert {"secretName": "mine", "defaultMode": 0o440} in [
        each.get("secret") for each in pod_spec(manifests)["volumes"]
    ]


def test_in_a_cluster_the_role_is_what_the_operator_says_it_needs() -> None:
    manifests = render_chart()
    assert one(manifests, "ClusterRole")["rules"] == manifest((*NAMESPACED_RULES, *CLUSTER_RULES))
    account = one(manifests, "ServiceAccount")["metadata"]
    assert one(manifests, "ClusterRoleBinding")["subjects"] == [
        {"kind": "ServiceAccount", "name": account["name"], "namespace": "tidegate"}
    ]
    assert pod_spec(manifests)["serviceAccountName"] == account["name"]


def test_in_namespaces_there_are_rights_there_and_nowhere_else() -> None:
    manifests = render_chart({"watchNamespaces": ["team-a", "team-b"]})
    assert not [each["kind"] for each in manifests if each["kind"].startswith("ClusterRole")]
    roles = [each for each in manifests if each["kind"] == "Role"]
    assert [role["metadata"]["namespace"] for role in roles] == ["team-a", "team-b"]
    assert all(role["rules"] == manifest(NAMESPACED_RULES) for role in roles)
    bindings = [each for each in manifests if each["kind"] == "RoleBinding"]
    assert [binding["metadata"]["namespace"] for binding in bindings] == ["team-a", "team-b"]
    assert all(binding["roleRef"]["name"] == roles[0]["metadata"]["name"] for binding in bindings)


def test_releases_in_two_namespaces_share_no_cluster_wide_name() -> None:
    names = {one(render_chart(namespace=namespace), "ClusterRole")["metadata"]["name"] for namespace in ("a", "b")}
    assert len(names) == 2


def test_the_crd_is_the_generated_one_and_kept() -> None:
    crd = one(render_chart(), "CustomResourceDefinition")
    assert crd["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    del crd["metadata"]["labels"]
    assert crd == custom_resource_definition()
    (copy,) = (CHART / "files" / "crds").iterdir()
    assert copy.read_bytes() == (CHART.parents[1] / "crds" / copy.name).read_bytes()


def test_the_crd_can_be_left_out_or_left_to_helm() -> None:
    assert not [
        each for each in render_chart({"crds": {"enabled": False}}) if each["kind"] == "CustomResourceDefinition"
    ]
    crd = one(render_chart({"crds": {"keep": False}}), "CustomResourceDefinition")
    assert "annotations" not in crd["metadata"]


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        pytest.param({"imagee": {}}, "imagee", id="a misspelt key"),
        pytest.param({"engine": {"runer": "sim"}}, "runer", id="a misspelt inner key"),
        pytest.param({"engine": {"runner": "fast"}}, "runner", id="an unknown runner"),
        pytest.param({"watchNamespaces": "team-a"}, "watchNamespaces", id="a string for a list"),
        pytest.param({"watchNamespaces": ["Team_A"]}, "watchNamespaces", id="no namespace's name"),
        pytest.param({"port": "http"}, "port", id="a word for a number"),
        pytest.param({"scrape": {"intervalSeconds": 0}}, "intervalSeconds", id="no time at all"),
    ],
)
def test_wrong_values_are_refused_with_their_name(values: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ChartRefused, match=complaint):
        render_chart(values)


def test_the_readme_lists_every_value() -> None:
    readme = (CHART / "README.md").read_text()
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]
    assert [key for key in values if f"`{key}`" not in readme and f"`{key}." not in readme] == []
    assert values.keys() == schema.keys() - {"global"}
