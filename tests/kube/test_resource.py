"""The resource on a real API server: what is accepted, what is refused and with which sentence, and how it shows."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from e2e.cluster.api_server import ApiServer
from e2e.cluster.errors import ApiRefused, KubectlFailed
from e2e.cluster.requests import Json
from e2e.installation.crds import wait_for_crds
from pool_cases import BAD_NAME_SENTENCE, BAD_NAMES, BROKEN, FINE
from tidegate_operator.api.base import CRD_NAME
from tidegate_operator.api.conditions import Condition, ConditionType
from tidegate_operator.api.crd import crd_yaml, pool_schema
from tidegate_operator.api.reasons import Reason
from tidegate_operator.api.status import InferencePoolStatus
from tidegate_operator.api.structural import Schema
from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.resources import POOL
from waiting import eventually

Kubectl = Callable[..., str]
TryOut = Callable[[str], Json]
MINIMAL = {"model": {"uri": "pvc://models/qwen3"}}
NOW = "2026-01-02T03:04:05Z"


@pytest.fixture(scope="module")
def installed(api_server: ApiServer) -> ApiServer:
    """The API server with our CRD, established."""
    api_server.kubectl("apply", "--server-side", "-f", "-", input=crd_yaml())
    wait_for_crds(api_server)
    return api_server


@pytest.fixture
def kubectl(installed: ApiServer, namespace: str) -> Kubectl:
    """kubectl in this test's namespace."""

    def run(*arguments: str, **options: Any) -> str:
        return installed.kubectl("--namespace", namespace, *arguments, **options)

    return run


@pytest.fixture
def try_out(installed: ApiServer) -> TryOut:
    """What the server would make of a manifest that kubectl brings; ApiRefused with what it would say."""
    path = POOL.path("default")
    return lambda manifest: installed.requests.create(
        path, json.loads(manifest), dryRun="All", fieldValidation="Strict"
    )


def pool(name: str = "chat", **spec: Any) -> str:
    manifest = {"apiVersion": "tidegate.dev/v1alpha1", "kind": "InferencePool", "metadata": {"name": name}}
    return json.dumps(manifest | {"spec": MINIMAL | spec})


def stored(kubectl: Kubectl, name: str = "chat") -> dict[str, Any]:
    return json.loads(kubectl("get", CRD_NAME, name, "-o", "json"))


def test_three_lines_of_spec_work_and_get_their_defaults(kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", input=pool())
    spec = stored(kubectl)["spec"]
    assert spec == {
        "model": {"uri": "pvc://models/qwen3"},
        "context": {},
        "traffic": {"promptTokens": 900, "outputTokens": 300},
        "accelerator": {"resource": "nvidia.com/gpu"},
        "replicas": 1,
        "minReplicas": 1,
        "objectives": {"ttftMilliseconds": 2000, "itlMilliseconds": 100},
        "scaling": {"mode": "Auto", "scaleDownHoldSeconds": 300},
        "queue": {"maxRequests": 64, "maxWaitSeconds": 30},
        "access": {"trustFairnessHeader": False},
        "engine": {"upgrade": "Pinned"},
        "rollout": {},
        "drain": {},
        "pod": {"resources": {}},
        "suspend": False,
    }


def test_the_servers_defaults_are_those_of_the_models(kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", input=pool())
    ours = InferencePool.model_validate(json.loads(pool())).spec
    assert InferencePool.model_validate(stored(kubectl)).spec == ours


SCHEMA = {
    "an unknown mode": ({"scaling": {"mode": "Magic"}}, 'supported values: "Auto", "Manual"'),
    "no quantity": ({"accelerator": {"memory": "lots"}}, "spec.accelerator.memory"),
    "a negative quantity": ({"accelerator": {"memory": -1}}, "should be greater than or equal to 0"),
    "a negative text": ({"accelerator": {"memory": "-1Gi"}}, "spec.accelerator.memory"),
    "a fraction that is no text": ({"accelerator": {"memory": 0.5}}, "spec.accelerator.memory"),
    "a misspelt field": ({"contxt": {"max": 100}}, 'unknown field "spec.contxt"'),
    "an empty prompt": ({"traffic": {"promptTokens": 0}}, "spec.traffic.promptTokens"),
}


@pytest.mark.parametrize(("changes", "sentence"), (BROKEN | SCHEMA).values(), ids=BROKEN | SCHEMA)
def test_an_impossible_spec_is_refused_with_what_to_do(try_out: TryOut, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ApiRefused) as refusal:
        try_out(pool(**changes))
    assert sentence in str(refusal.value)


@pytest.mark.parametrize("name", BAD_NAMES.values(), ids=BAD_NAMES)
def test_a_name_that_children_cannot_carry_is_refused(try_out: TryOut, name: str) -> None:
    with pytest.raises(ApiRefused) as refusal:
        try_out(pool(name))
    assert BAD_NAME_SENTENCE in str(refusal.value) or "Invalid value" in str(refusal.value)


def test_a_name_of_forty_characters_is_accepted(try_out: TryOut) -> None:
    assert try_out(pool("a" * 40))["metadata"]["uid"]


@pytest.mark.parametrize("changes", FINE.values(), ids=FINE)
def test_a_possible_spec_is_accepted(try_out: TryOut, changes: dict[str, Any]) -> None:
    assert try_out(pool(**changes))["metadata"]["uid"]


def test_an_update_is_checked_like_a_creation(kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", input=pool(maxReplicas=4))
    with pytest.raises(KubectlFailed, match="replicas is larger than maxReplicas"):
        kubectl("scale", f"{CRD_NAME}/chat", "--replicas=5")


def test_kubectl_scale_writes_spec_replicas(kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", input=pool(maxReplicas=4))
    kubectl("scale", f"{CRD_NAME}/chat", "--replicas=3")
    assert stored(kubectl)["spec"]["replicas"] == 3
    scale = json.loads(kubectl("get", CRD_NAME, "chat", "--subresource=scale", "-o", "json"))
    assert scale["spec"]["replicas"] == 3


def test_a_server_side_dry_run_changes_nothing(kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", input=pool())
    before = stored(kubectl)
    kubectl("apply", "--server-side", "--dry-run=server", "-f", "-", input=pool(replicas=1))
    assert stored(kubectl)["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]


def sample(node: Schema) -> Any:
    """A value with everything that the schema allows to be there."""
    match node.get("type"):
        case "object" if "properties" in node:
            return {name: sample(child) for name, child in node["properties"].items()}
        case "object":
            return {"key": sample(node["additionalProperties"])}
        case "array":
            return [sample(node["items"])]
        case "integer" | "number":
            return max(node.get("minimum", 1), 1)
        case "boolean":
            return True
        case _:
            return node["enum"][0] if "enum" in node else NOW if node.get("format") == "date-time" else "1"


def full_status() -> InferencePoolStatus:
    """Every field set, those that others test by name to something like life."""
    ready = Condition(
        type=ConditionType.READY, status="True", reason=Reason.ALL_REPLICAS_READY, message="3 of 3",
        observed_generation=1, last_transition_time=NOW,
    )  # fmt: skip
    whole = sample(pool_schema()["properties"]["status"])
    return InferencePoolStatus.model_validate({
        **whole, "conditions": [ready], "sizing": whole["sizing"] | {"context": 8192, "slots": 12}, "replicas": 3,
        "desiredReplicas": 3, "ready": "3/3", "phase": "Ready", "selector": "app=x",
    })  # fmt: skip


def apply_status(kubectl: Kubectl, status: dict[str, Any]) -> None:
    document = json.loads(pool()) | {"status": status}
    del document["spec"]
    kubectl(
        "apply",
        "--server-side",
        "--subresource=status",
        "--field-manager=test-status",
        "-f",
        "-",
        input=json.dumps(document),
    )


def test_every_status_field_survives_the_server_so_that_a_second_write_is_none(kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", input=pool())
    status = full_status()
    assert status.model_fields_set == set(InferencePoolStatus.model_fields)
    apply_status(kubectl, status.to_wire())
    first = stored(kubectl)
    assert first["status"] == status.to_wire()
    assert InferencePool.model_validate(first).status == status
    apply_status(kubectl, status.to_wire())
    assert stored(kubectl)["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


def test_status_is_written_only_through_its_subresource_and_leaves_the_generation_alone(kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", input=json.dumps(json.loads(pool()) | {"status": {"replicas": 7}}))
    assert "status" not in stored(kubectl)
    apply_status(kubectl, full_status().to_wire())
    assert stored(kubectl)["metadata"]["generation"] == 1
    kubectl("patch", CRD_NAME, "chat", "--type=merge", "-p", '{"spec": {"suspend": true}, "status": {"replicas": 9}}')
    after = stored(kubectl)
    assert after["metadata"]["generation"] == 2
    assert after["status"]["replicas"] == 3


def test_the_scale_subresource_shows_replicas_and_selector_to_autoscalers(kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", input=pool())
    apply_status(kubectl, full_status().to_wire())
    scale = json.loads(kubectl("get", CRD_NAME, "chat", "--subresource=scale", "-o", "json"))
    assert scale["status"] == {"replicas": 3, "selector": "app=x"}


def test_the_table_shows_what_matters(kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", input=pool())
    apply_status(kubectl, full_status().to_wire())
    head, row = kubectl("get", "tgp").splitlines()
    assert head.split() == ["NAME", "MODEL", "READY", "DESIRED", "CONTEXT", "SLOTS", "ACCELERATOR", "STATUS", "AGE"]
    assert row.split()[:-1] == ["chat", "pvc://models/qwen3", "3/3", "3", "8192", "12", "nvidia.com/gpu", "Ready"]


def test_explain_tells_what_a_field_means(kubectl: Kubectl) -> None:
    def explained(path: str) -> str:
        return " ".join(
            kubectl("explain", f"{CRD_NAME.partition('.')[0]}.{path}", "--api-version=tidegate.dev/v1alpha1").split()
        )

    eventually(lambda: "GROUP: tidegate.dev" in explained("spec"), what="the schema is published")
    assert "Absent: as long as the model allows and memory holds" in explained("spec.context.max")
    assert "before one is removed. (default 300)" in explained("spec.scaling.scaleDownHoldSeconds")
    assert "Tidegate decides between minReplicas and maxReplicas" in explained("spec.scaling.mode")
    spread = "podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution.podAffinityTerm.topologyKey"
    assert "what near means, such as kubernetes.io/hostname" in explained(f"spec.pod.affinity.{spread}")


def test_the_committed_file_is_what_kubectl_applies(installed: ApiServer) -> None:
    live = yaml.safe_load(installed.kubectl("get", "crd", CRD_NAME, "-o", "yaml"))
    columns = live["spec"]["versions"][0]["additionalPrinterColumns"]
    assert columns == yaml.safe_load(crd_yaml())["spec"]["versions"][0]["additionalPrinterColumns"]
    assert {"Established", "NamesAccepted"} <= {
        each["type"] for each in live["status"]["conditions"] if each["status"] == "True"
    }
    assert not [each for each in live["status"]["conditions"] if each["type"] == "NonStructuralSchema"]
