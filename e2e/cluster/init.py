"""Pid 1 of a cluster with nodes, inside its own network, mount and PID namespaces: killing it ends everything in them.

`python -m e2e.cluster.init FOLDER`, run by the supervisor through unshare: builds the network, starts the control
plane, then reaps the processes that the nodes' container shims leave to it.
"""

import os
import sys
import traceback
from pathlib import Path

from e2e.cluster import cgroups, links
from e2e.cluster.components import Command, Components, tail
from e2e.cluster.control_plane import start_control_plane
from e2e.cluster.errors import ClusterError
from e2e.cluster.mounts import bind
from e2e.cluster.spec import ClusterSpec

# What a kubelet sets for the whole machine. It is shown files that hold these values; the machine's own never change.
SYSCTLS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
PROXY_CONFIGURATION = """\
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clientConnection: {kubeconfig: KUBECONFIG}
conntrack: {maxPerCore: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}  # zeros: leave sysctls alone
nftables: {masqueradeAll: true, minSyncPeriod: 100ms}
"""


def main(folder: Path) -> None:
    spec = ClusterSpec.read(folder)
    components = Components(spec.folder, spec.logs)
    try:
        _start(spec, components)
    except (ClusterError, OSError):
        spec.failure_file.write_text(traceback.format_exc())
        return
    spec.ready_file.touch()
    _reap(spec, components)


def _start(spec: ClusterSpec, components: Components) -> None:
    assert spec.network, "a cluster with namespaces has a network"
    cgroups.enter(f"{spec.network.label}/control-plane")
    _show_sysctls(spec.folder / "sysctl")
    links.build_inside(spec.network)
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")  # of this network namespace
    spec.network_ready_file.touch()
    start_control_plane(spec, components)
    components.start(_kube_proxy(spec))


def _show_sysctls(folder: Path) -> None:
    folder.mkdir()
    for name, value in SYSCTLS.items():
        shown = folder / name.replace("/", ".")
        shown.write_text(value + "\n")
        bind(shown, Path("/proc/sys") / name)


def _kube_proxy(spec: ClusterSpec) -> Command:
    """One for all nodes: they share this network namespace."""
    configuration = spec.folder / "kube-proxy.yaml"
    configuration.write_text(PROXY_CONFIGURATION.replace("KUBECONFIG", str(spec.kubeconfig("proxy"))))
    # It writes no rule before it has seen the Node it is said to run on, for up to 30 s: name one that will come.
    return Command("kube-proxy", (f"--config={configuration}", "--hostname-override=node1"))


def _reap(spec: ClusterSpec, components: Components) -> None:
    """Until a component of the control plane ends: then the cluster ends too, rather than limp."""
    while True:
        pid, status = os.waitpid(-1, 0)
        if name := components.name_of(pid):
            end = os.waitstatus_to_exitcode(status)
            print(f"{name} ended with {end}, so the cluster ends: {tail(spec.logs / f'{name}.log')}", file=sys.stderr)
            return


if __name__ == "__main__":
    main(Path(sys.argv[1]))
