"""The way to a running API server of ours: kubectl, requests, kubeconfigs, namespaces.

What tests, the demo and diagnostics hold. Every call names the cluster's own kubeconfig, so contexts of the user are
out of reach.
"""

import os
import subprocess
import time
import uuid
from pathlib import Path

from e2e.cluster.environment import clean_environment
from e2e.cluster.errors import ClusterFailed, KubectlFailed
from e2e.cluster.pki import Authority, write_private
from e2e.cluster.requests import Requests
from e2e.cluster.spec import ClusterSpec

KUBECTL_SECONDS = 120.0
ACCOUNT_SECONDS = 60.0
POLL_SECONDS = 0.02
NAMESPACES = "/api/v1/namespaces"


class ApiAccess:
    """An API server by its spec; base of ApiServer and Cluster, which also start and end one."""

    def __init__(self, spec: ClusterSpec) -> None:
        self.spec = spec
        self.requests = Requests(spec)

    @property
    def url(self) -> str:
        return self.spec.url

    @property
    def kubeconfig(self) -> Path:
        """The cluster administrator's."""
        return self.spec.kubeconfig("admin")

    @property
    def admin_kubeconfig(self) -> Path:
        """The same by its full name, for tests that use several identities."""
        return self.kubeconfig

    def kubectl(
        self,
        *arguments: str | Path,
        input: str | None = None,  # noqa: A002 - as subprocess.run has it
        check: bool = True,
        kubeconfig: Path | None = None,
        timeout_seconds: float = KUBECTL_SECONDS,
    ) -> str:
        """kubectl's output. Raises KubectlFailed with its words, unless `check` is off: then a failure gives ""."""
        command = [str(self.spec.folder / "bin" / "kubectl"), "--kubeconfig", str(kubeconfig or self.kubeconfig)]
        environment = clean_environment(os.environ) | {"HOME": str(self.spec.folder)}  # no ~/.kube of the user either
        done = subprocess.run(
            [*command, *map(str, arguments)], input=input, capture_output=True, text=True, env=environment, check=False,
            timeout=timeout_seconds,
        )  # fmt: skip
        if not done.returncode:
            return done.stdout
        if check:
            raise KubectlFailed(
                f"kubectl {' '.join(map(str, arguments))}: {done.stderr.strip() or done.stdout.strip()}"
            )
        return ""

    def create_namespace(self, name: str, labels: dict[str, str]) -> None:
        """Returns once pods can be created there: the controllers have made its default ServiceAccount."""
        self.requests.create(NAMESPACES, {"metadata": {"name": name, "labels": labels}})
        deadline = time.monotonic() + ACCOUNT_SECONDS
        while self.requests.find(f"{NAMESPACES}/{name}/serviceaccounts/default") is None:
            if time.monotonic() > deadline:
                raise ClusterFailed(f"namespace {name} had no default ServiceAccount in {ACCOUNT_SECONDS:.0f} s")
            time.sleep(POLL_SECONDS)

    def delete_namespace(self, name: str) -> None:
        """Returns at once; the controllers go on. One that is gone already is fine."""
        self.requests.delete(f"{NAMESPACES}/{name}")

    def service_account_token(self, name: str, namespace: str, *, hours: int = 2) -> str:
        """A token for an existing ServiceAccount."""
        request = {"spec": {"expirationSeconds": hours * 3600}}
        answer = self.requests.create(f"{NAMESPACES}/{namespace}/serviceaccounts/{name}/token", request)
        return str(answer["status"]["token"])

    def service_account_kubeconfig(self, name: str, namespace: str) -> Path:
        """A kubeconfig with which a client has exactly the rights of an existing ServiceAccount."""
        token = self.service_account_token(name, namespace)
        path = self.spec.kubeconfig(f"{namespace}.{name}.{uuid.uuid4().hex[:8]}")
        write_private(path, Authority(self.spec.pki).token_kubeconfig(token, self.url))
        return path
