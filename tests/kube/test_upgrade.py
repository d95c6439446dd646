"""Upgrade and uninstall on a real API server: an older CRD grows in place, and nothing is left that gets stuck."""

import json
from collections.abc import Iterator

import pytest
import yaml

from e2e.cluster.api_server import ApiServer
from e2e.installation.chart import Manifest, render_chart
from e2e.installation.crds import wait_for_crds
from operator_process import CRD_FILE, ROOT, OperatorUnderTest
from pools import pool_manifest
from tidegate_operator.api.base import CRD_NAME
from tidegate_operator.decisions.drift import is_satisfied
from waiting import eventually

BASELINES = ROOT / "tests" / "baselines"


@pytest.fixture
def current_crd_afterwards(api_server: ApiServer) -> Iterator[None]:
    """Other tests of this session share the API server."""
    yield
    api_server.kubectl("apply", "--server-side", "--force-conflicts", "-f", CRD_FILE)
    wait_for_crds(api_server)


def crd_of(manifests: list[Manifest]) -> str:
    return json.dumps(next(each for each in manifests if each["kind"] == "CustomResourceDefinition"))


def test_pools_of_an_older_crd_keep_every_word_when_the_chart_brings_the_new_one(
    api_server: ApiServer, crd: None, namespace: str, current_crd_afterwards: None
) -> None:
    kubectl = api_server.kubectl
    kubectl("apply", "--server-side", "--force-conflicts", "-f", BASELINES / "crd-0.1.0.yaml")
    eventually(lambda: "runtimeClassName" not in kubectl("get", "crd", CRD_NAME, "-o", "json"))
    pools = list(yaml.safe_load_all((BASELINES / "pools-0.1.0.yaml").read_text()))
    document = json.dumps({"apiVersion": "v1", "kind": "List", "items": pools})
    kubectl("create", "-n", namespace, "-f", "-", input=document)
    before = {each["metadata"]["name"]: each["spec"] for each in stored(api_server, namespace)}

    kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", input=crd_of(render_chart()))
    eventually(lambda: newer_field_is_served(api_server, namespace), what="the new CRD is served")
    after = {each["metadata"]["name"]: each["spec"] for each in stored(api_server, namespace)}
    assert [name for name, spec in before.items() if not is_satisfied(spec, after[name])] == [], (
        "only defaults are added"
    )
    for pool in pools:
        kubectl("annotate", CRD_NAME, pool["metadata"]["name"], "touched=yes", "-n", namespace)
    answer = kubectl("apply", "--dry-run=server", "--validate=strict", "-n", namespace, "-f", "-", input=document)
    assert len(answer.splitlines()) == len(pools), "what people keep in Git is still taken"


def stored(api_server: ApiServer, namespace: str) -> list[Manifest]:
    return list(json.loads(api_server.kubectl("get", CRD_NAME, "-n", namespace, "-o", "json"))["items"])


def newer_field_is_served(api_server: ApiServer, namespace: str) -> bool:
    newer = pool_manifest("newer", pod={"runtimeClassName": "nvidia"})
    answer = api_server.kubectl(
        "create", "--dry-run=server", "--validate=strict", "-n", namespace, "-o", "name", "-f", "-",
        input=json.dumps(newer), check=False,
    )  # fmt: skip
    return bool(answer)


def test_uninstalling_leaves_pools_that_serve_and_deleting_the_namespace_afterwards_is_not_stuck(
    operator: OperatorUnderTest, api_server: ApiServer
) -> None:
    operator.apply(pool_manifest())
    eventually(lambda: operator.is_condition("Ready", "True"))
    assert operator.stop() == 0
    deployment = operator.get("deployment", "chat")
    assert operator.pool()["metadata"].get("finalizers", []) == []
    assert deployment["status"]["readyReplicas"] == 1, "engines need no operator to serve"
    api_server.kubectl("delete", "namespace", operator.namespace, "--wait=false")
    eventually(lambda: f"/{operator.namespace}\n" not in api_server.kubectl("get", "namespaces", "-o", "name"),
               timeout_seconds=90, what="the namespace is gone without an operator")  # fmt: skip


def test_deleting_the_crd_takes_every_pool_and_what_it_owns_with_it(
    operator: OperatorUnderTest, api_server: ApiServer, current_crd_afterwards: None
) -> None:
    operator.apply(pool_manifest("first"))
    eventually(lambda: operator.is_condition("Ready", "True", "first"))
    api_server.kubectl("delete", CRD_NAME, "first", "-n", operator.namespace)
    eventually(lambda: is_clean(operator), timeout_seconds=90, what="the garbage collector knows pools")
    operator.apply(pool_manifest())
    eventually(lambda: operator.is_condition("Ready", "True"))
    assert operator.stop() == 0
    api_server.kubectl("delete", "crd", CRD_NAME, "--timeout=60s")
    eventually(lambda: is_clean(operator), timeout_seconds=60)


def is_clean(operator: OperatorUnderTest) -> bool:
    """Nothing of any pool is there."""
    kinds = "deployments,services,serviceaccounts,configmaps,controllerrevisions,pods"
    return not operator.get(kinds, selector="tidegate.dev/pool")
