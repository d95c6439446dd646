"""The API server that this folder's tests run against is a real one, with controllers, and ours alone."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster.api_server import ApiServer
from e2e.cluster.errors import KubectlFailed
from e2e.cluster.paths import REPOSITORY
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


OWNER = """
import signal
from e2e.cluster.api_server import ApiServer
print(ApiServer.start().spec.folder, flush=True)
signal.pause()
"""


def test_nothing_is_left_of_an_api_server_whose_owner_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        folder = Path(owner.stdout.readline().strip())
        assert processes_of(folder)
        owner.kill()
    eventually(lambda: not folder.exists() and not processes_of(folder), what="the end of the orphaned API server")


def test_components_die_with_a_killed_supervisor() -> None:
    server = ApiServer.start()
    os.kill(int(server.spec.supervisor_pid_file.read_text()), signal.SIGKILL)
    eventually(lambda: not processes_of(server.spec.folder), what="the end of the components")
    server.stop()


def processes_of(folder: Path) -> list[Path]:
    return [path for path in Path("/proc").glob("[0-9]*/cwd") if is_in(path, folder)]


def is_in(link: Path, folder: Path) -> bool:
    try:
        return link.readlink() == folder
    except OSError:  # ended meanwhile, or another user's
        return False
