"""The API server that this folder's tests run against is a real one, with controllers, and ours alone."""

import json
import os
from collections.abc import Iterator

import pytest

from e2e.cluster.api_server import ApiServer
from e2e.cluster.errors import KubectlFailed
from waiting import eventually

DEPLOYMENT = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "web"},
    "spec": {
        "selector": {"matchLabels": {"app": "web"}},
        "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "web", "image": "localhost/none:1"}]},
        },
    },
}


def test_the_control_plane_is_the_version_we_build(api_server: ApiServer) -> None:
    assert api_server.kubectl("get", "--raw", "/readyz") == "ok"
    assert json.loads(api_server.kubectl("get", "--raw", "/version"))["gitVersion"] == "v1.37.2"


def test_a_namespace_has_its_default_service_account(api_server: ApiServer, namespace: str) -> None:
    assert api_server.kubectl("get", "serviceaccount", "default", "-n", namespace, "-o", "name").strip()


def test_a_deployment_gets_a_replica_set_and_pods_that_stay_pending(api_server: ApiServer, namespace: str) -> None:
    api_server.kubectl("apply", "-n", namespace, "-f", "-", input=json.dumps(DEPLOYMENT))

    def phases() -> str:
        return api_server.kubectl("get", "pods", "-n", namespace, "-o", "jsonpath={.items[*].status.phase}")

    assert eventually(phases) == "Pending"
    owner = api_server.kubectl(
        "get", "replicaset", "-n", namespace, "-o", "jsonpath={.items[*].metadata.ownerReferences[*].name}"
    )
    assert owner == "web"


def test_a_service_account_kubeconfig_has_exactly_the_rights_of_the_account(
    api_server: ApiServer, namespace: str
) -> None:
    api_server.kubectl("create", "serviceaccount", "reader", "-n", namespace)
    api_server.kubectl("create", "role", "reader", "--verb=list", "--resource=pods", "-n", namespace)
    api_server.kubectl(
        "create", "rolebinding", "reader", "--role=reader", f"--serviceaccount={namespace}:reader", "-n", namespace
    )
    as_reader = api_server.service_account_kubeconfig("reader", namespace)
    api_server.kubectl("get", "pods", "-n", namespace, kubeconfig=as_reader)
    with pytest.raises(KubectlFailed, match="forbidden"):
        api_server.kubectl("get", "secrets", "-n", namespace, kubeconfig=as_reader)


@pytest.fixture
def foreign_context() -> Iterator[None]:
    os.environ["KUBECONFIG"] = "/nonexistent/someone-elses.kubeconfig"
    yield
    del os.environ["KUBECONFIG"]


def test_kubectl_sees_no_context_but_ours(api_server: ApiServer, foreign_context: None) -> None:
    assert api_server.kubectl("config", "get-contexts", "-o", "name").split() == ["tidegate-local"]


def test_two_api_servers_run_side_by_side(api_server: ApiServer) -> None:
    other = ApiServer.start()
    try:
        assert other.url != api_server.url
        other.kubectl("create", "namespace", "only-there")
        with pytest.raises(KubectlFailed, match="NotFound"):
            api_server.kubectl("get", "namespace", "only-there")
    finally:
        other.stop()
    assert not other.spec.folder.exists()
