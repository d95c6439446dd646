"""The way to a running API server of ours: kubectl, kubeconfigs, namespaces.

What tests, the demo and diagnostics hold. Every call names the cluster's own kubeconfig, so contexts of the user are
out of reach.
"""

import json
import os
import subprocess
import uuid
from pathlib import Path

from e2e.cluster.environment import clean_environment
from e2e.cluster.errors import KubectlFailed
from e2e.cluster.pki import Authority, write_private
from e2e.cluster.spec import ClusterSpec

KUBECTL_SECONDS = 120.0


class ApiAccess:
    """An API server by its spec; base of ApiServer and Cluster, which also start and end one."""

    def __init__(self, spec: ClusterSpec) -> None:
        self.spec = spec

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
        manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
        self.kubectl("create", "-f", "-", input=json.dumps(manifest))
        self.kubectl("wait", "--for=create", "serviceaccount/default", "--namespace", name, "--timeout=60s")

    def delete_namespace(self, name: str) -> None:
        """Returns at once; the controllers go on. One that is gone already is fine."""
        self.kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")

    def service_account_token(self, name: str, namespace: str, *, hours: int = 2) -> str:
        """A token for an existing ServiceAccount."""
        return self.kubectl("create", "token", name, "--namespace", namespace, f"--duration={hours}h").strip()

    def service_account_kubeconfig(self, name: str, namespace: str) -> Path:
        """A kubeconfig with which a client has exactly the rights of an existing ServiceAccount."""
        token = self.service_account_token(name, namespace)
        path = self.spec.kubeconfig(f"{namespace}.{name}.{uuid.uuid4().hex[:8]}")
        write_private(path, Authority(self.spec.pki).token_kubeconfig(token, self.url))
        return path
