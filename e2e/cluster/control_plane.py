"""The control plane of one cluster: etcd, API server, controller manager and, where there are nodes, the scheduler.

Run by the supervisor (control plane alone, on the loopback) or by pid 1 of a cluster's namespaces. The argument lists
are pure functions of the spec; paths in them are relative to the cluster's folder.
"""

import ssl
import time
import urllib.error
import urllib.request
from pathlib import Path

from e2e.cluster.components import Command, Components
from e2e.cluster.errors import ClusterFailed
from e2e.cluster.pki import Authority, write_private
from e2e.cluster.spec import ClusterSpec

ETCD_URL = "unix://etcd.sock"  # sockets in the folder: no port that two clusters could fight over
READY_SECONDS = 120.0
POLL_SECONDS = 0.05
USERS = {
    "admin": "/O=system:masters/CN=admin",
    "controller-manager": "/O=system:masters/CN=system:kube-controller-manager",
    "scheduler": "/CN=system:kube-scheduler",
    "proxy": "/CN=system:kube-proxy",
}


def etcd() -> Command:
    peer = "unix://etcd-peer.sock"
    return Command(
        "etcd",
        (
            "--data-dir=etcd",
            "--unsafe-no-fsync",  # the data does not outlive the cluster
            f"--listen-client-urls={ETCD_URL}",
            f"--advertise-client-urls={ETCD_URL}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--log-level=warn",
        ),
    )


def api_server(spec: ClusterSpec) -> Command:
    arguments = [
        f"--etcd-servers={ETCD_URL}",
        f"--bind-address={spec.api_host}",
        f"--advertise-address={spec.api_host}",
        f"--secure-port={spec.api_port}",
        "--tls-cert-file=pki/apiserver.crt",
        "--tls-private-key-file=pki/apiserver.key",
        "--client-ca-file=pki/ca.crt",
        "--service-account-key-file=pki/sa.pub",
        "--service-account-signing-key-file=pki/sa.key",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--authorization-mode=Node,RBAC",
        f"--service-cluster-ip-range={spec.service_range}",
    ]
    if spec.network:
        arguments += [
            "--enable-admission-plugins=NodeRestriction",
            "--kubelet-client-certificate=pki/kubelet-client.crt",
            "--kubelet-client-key=pki/kubelet-client.key",
            "--kubelet-certificate-authority=pki/ca.crt",
            "--kubelet-preferred-address-types=InternalIP",  # there is no DNS for host names
            "--allow-privileged=true",
        ]
    else:
        arguments += [
            "--permit-port-sharing",  # the supervisor keeps the port reserved by a socket of its own
            "--endpoint-reconciler-type=none",  # a loopback address is refused as an endpoint
        ]
    return Command("kube-apiserver", tuple(arguments))


def controller_manager(spec: ClusterSpec) -> Command:
    """As one administrator for all its controllers: an account for each (41 of them) costs seconds at every start."""
    arguments = (
        f"--kubeconfig={spec.kubeconfig('controller-manager')}",
        "--service-account-private-key-file=pki/sa.key",
        "--root-ca-file=pki/ca.crt",
        "--leader-elect=false",
        "--secure-port=0",
    )
    return Command("kube-controller-manager", arguments)


def scheduler(spec: ClusterSpec) -> Command:
    arguments = (f"--kubeconfig={spec.kubeconfig('scheduler')}", "--leader-elect=false", "--secure-port=0")
    return Command("kube-scheduler", arguments)


def start_control_plane(spec: ClusterSpec, components: Components) -> None:
    """Certificates, then the components; returns once the API server says ready."""
    components.start(etcd())
    create_identities(spec)
    components.start(api_server(spec))
    _wait_until_ready(spec, components)
    components.start(controller_manager(spec))
    if spec.network:
        components.start(scheduler(spec))


def create_identities(spec: ClusterSpec) -> None:
    """The authority, the API server's certificate and a kubeconfig per user."""
    authority = Authority.create(spec.pki)
    first_service = spec.service_range.split("/", maxsplit=1)[0].removesuffix("0") + "1"
    addresses = f"IP:{spec.api_host},IP:127.0.0.1,IP:{first_service}"
    names = "DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc"
    authority.issue("apiserver", "/CN=kube-apiserver", f"{addresses},{names}")
    if spec.network:
        authority.issue("kubelet-client", "/O=system:masters/CN=kube-apiserver-kubelet-client")
    for user, subject in USERS.items():
        authority.issue(user, subject)
        write_private(spec.kubeconfig(user), authority.kubeconfig(user, spec.url))


def _wait_until_ready(spec: ClusterSpec, components: Components) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while not _is_ready(f"{spec.url}/readyz", spec.pki / "ca.crt"):
        components.check()
        if time.monotonic() > deadline:
            raise ClusterFailed(f"the API server at {spec.url} was not ready in {READY_SECONDS:.0f} s, see {spec.logs}")
        time.sleep(POLL_SECONDS)


def _is_ready(url: str, authority: Path) -> bool:
    trust = urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=str(authority)))
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({}), trust).open(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
