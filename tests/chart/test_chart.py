"""The chart renders to what the operator needs: its settings, its rights, a restricted pod, the CRD."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.installation.chart import CHART, ChartRefused, Manifest, lint_chart, render_chart
from restricted import violations
from tidegate_core.telemetry import ADMIN_PORT
from tidegate_operator.api.crd import custom_resource_definition
from tidegate_operator.labels import ENGINE_ROLE, ROLE_LABEL
from tidegate_operator.rbac import CLUSTER_RULES, ELECTION_RULES, NAMESPACED_RULES, manifest
from tidegate_operator.settings import OperatorSettings, variable_names
from values_table import values_table

GATEWAY = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "gateways"}}}
PROMETHEUS = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
EXAMPLES = CHART.parents[1] / "examples"
EVERYTHING = {
    "replicas": 3,
    "watchNamespaces": ["team-a", "team-b"],
    "imagePullSecrets": [{"name": "pull"}],
    "engine": {
        "image": "engine:2",
        "imagePullPolicy": "Always",
        "runner": "sim",
        "simPreemptionsPerMinute": 6,
        "podTemplatePatch": {"spec": {"hostname": 'it\'s "quoted"'}},
    },
    "hub": {"endpoint": "http://mirror.team-a:8080"},
    "scrape": {"intervalSeconds": 2.5, "idleIntervalSeconds": 10, "timeoutSeconds": 1},
    "reconcile": {"resyncSeconds": 60, "workers": 2},
    "election": {"durationSeconds": 6, "renewDeadlineSeconds": 4, "retrySeconds": 1},
    "networkPolicy": {
        "clients": [GATEWAY],
        "monitoring": [PROMETHEUS],
        "apiServer": [{"cidr": "10.0.0.1/32", "port": 6443}],
    },
    "logLevel": "DEBUG",
    "monitoring": {"podMonitors": True, "rules": True, "dashboard": True, "labels": {"release": "prometheus"}},
    "prices": {"perHour": {"nvidia.com/gpu": "2.50"}},
    "port": 9090,
    "nodeSelector": {"a": "b"},
    "tolerations": [{"operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
    ],
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
    assert one(render_chart(values), "ServiceAccount")["automountServiceAccountToken"] is False


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
    deployment = one(render_chart(), "Deployment")["spec"]
    assert (deployment["replicas"], deployment["strategy"]) == (1, {"type": "Recreate"})


def test_several_operators_elect_one_are_spread_and_never_all_evicted() -> None:
    manifests = render_chart(EVERYTHING)
    deployment = one(manifests, "Deployment")["spec"]
    assert (deployment["replicas"], deployment["strategy"]["type"]) == (3, "RollingUpdate")
    ours = deployment["selector"]
    (spread,) = deployment["template"]["spec"]["topologySpreadConstraints"]
    assert (spread["topologyKey"], spread["labelSelector"]) == ("kubernetes.io/hostname", ours)
    budget = one(manifests, "PodDisruptionBudget")["spec"]
    assert (budget["maxUnavailable"], budget["selector"]) == (1, ours)


def test_a_single_operator_has_no_budget_that_would_block_its_node() -> None:
    assert not [each for each in render_chart() if each["kind"] == "PodDisruptionBudget"]
    off = render_chart({"replicas": 2, "podDisruptionBudget": {"enabled": False}})
    assert not [each for each in off if each["kind"] == "PodDisruptionBudget"]


def test_the_lease_is_in_the_operators_namespace_with_rights_there_alone() -> None:
    manifests = render_chart({"watchNamespaces": ["tidegate", "team-a"]})
    given = environment(manifests)
    assert given["TIDEGATE_ELECTION__NAMESPACE"] == "tidegate"
    roles = [each for each in manifests if each["kind"] == "Role" and "leases" in str(each["rules"])]
    assert [(role["metadata"]["namespace"], role["rules"]) for role in roles] == [
        ("tidegate", manifest(ELECTION_RULES))
    ]
    bound = [each["roleRef"]["name"] for each in manifests if each["kind"] == "RoleBinding"]
    assert roles[0]["metadata"]["name"] in bound


def test_only_the_operator_and_named_monitoring_reach_admin_ports() -> None:
    manifests = render_chart(EVERYTHING)
    operator, monitoring = json.loads(environment(manifests)["TIDEGATE_ADMIN_PEERS"])
    assert operator["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "tidegate"}
    pod_labels = one(manifests, "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert operator["podSelector"]["matchLabels"].items() <= pod_labels.items()
    assert monitoring == PROMETHEUS
    assert json.loads(environment(manifests)["TIDEGATE_CLIENT_PEERS"]) == [GATEWAY]
    policy = one(manifests, "NetworkPolicy")["spec"]
    assert policy["ingress"] == [{"ports": [{"protocol": "TCP", "port": 9090}], "from": [PROMETHEUS]}]
    assert policy["podSelector"] == one(manifests, "Deployment")["spec"]["selector"]


def test_an_operator_that_is_told_where_the_api_server_is_reaches_nothing_else_but_dns_and_engines() -> None:
    assert one(render_chart(), "NetworkPolicy")["spec"]["policyTypes"] == ["Ingress"]
    policy = one(render_chart(EVERYTHING), "NetworkPolicy")["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    dns, server, engines = policy["egress"]
    assert {port["port"] for port in dns["ports"]} == {53}
    assert server["to"] == [{"ipBlock": {"cidr": "10.0.0.1/32"}}]
    assert (engines["ports"][0]["port"], engines["to"][0]["podSelector"]["matchLabels"]) == (
        ADMIN_PORT,
        {ROLE_LABEL: ENGINE_ROLE},
    )


def test_network_policies_can_be_left_to_others() -> None:
    manifests = render_chart({"networkPolicy": {"enabled": False}})
    assert not [each for each in manifests if each["kind"] == "NetworkPolicy"]
    assert "TIDEGATE_ADMIN_PEERS" not in environment(manifests)


def test_monitors_that_the_network_policy_would_shut_out_are_refused_with_what_to_name() -> None:
    with pytest.raises(ChartRefused, match="name your Prometheus there"):
        render_chart({"monitoring": {"podMonitors": True}})
    assert render_chart({"monitoring": {"podMonitors": True}, "networkPolicy": {"enabled": False}})


def test_an_image_can_be_pinned_by_its_digest() -> None:
    digest = f"sha256:{'ab' * 32}"
    manifests = render_chart({"image": {"repository": "mirror/tidegate", "tag": "1.2.3", "digest": digest}})
    assert pod_spec(manifests)["containers"][0]["image"] == f"mirror/tidegate@{digest}"
    assert environment(manifests)["TIDEGATE_ENGINE__IMAGE"] == f"mirror/tidegate@{digest}"


def test_no_rule_of_the_chart_names_secrets() -> None:
    for values in ({}, EVERYTHING):
        roles = [each for each in render_chart(values) if each["kind"] in ("Role", "ClusterRole")]
        assert roles
        assert not [role for role in roles for rule in role["rules"] if {"secrets", "*"} & set(rule["resources"])]


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
    of_pools = [each for each in manifests if "election" not in each["metadata"]["name"]]
    roles = [each for each in of_pools if each["kind"] == "Role"]
    assert [role["metadata"]["namespace"] for role in roles] == ["team-a", "team-b"]
    assert all(role["rules"] == manifest(NAMESPACED_RULES) for role in roles)
    bindings = [
        each for each in manifests if each["kind"] == "RoleBinding" and "election" not in each["metadata"]["name"]
    ]
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


@pytest.mark.parametrize("path", sorted((EXAMPLES / "helm").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_example_values_render(path: Path) -> None:
    values = yaml.safe_load(path.read_text())
    manifests = render_chart(values)
    assert violations(pod_spec(manifests)) == []
    roles = {each["metadata"]["namespace"] for each in manifests if each["kind"] == "Role"}
    assert roles == {"tidegate", *values.get("watchNamespaces", ())}


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


def test_the_readme_shows_every_value_with_its_default() -> None:
    table = values_table(CHART)
    assert table in (CHART / "README.md").read_text(), f"put this into the README:\n{table}"


def test_every_value_has_a_place_in_the_schema_and_a_sentence() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]
    assert values.keys() == schema.keys() - {"global"}
    assert [name for name, node in schema.items() if not node.get("description", "").endswith(".")] == []
