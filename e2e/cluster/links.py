"""The network of a cluster with nodes: a bridge inside its namespace, and one link in from the machine.

    machine                                namespace
    tg-N  10.N.0.254  ---- veth ----  up0 -> br0  10.N.0.1 (API), 10.N.0.11.. (nodes)
    10.N.0.0/16 via 10.N.0.1                      10.N.n.0/24 pods of node n, 10.N.128.0/17 services

So a test process reaches API, pods and services directly, and pods reach a server of the test process at 10.N.0.254.
"""

import subprocess

from e2e.cluster.errors import ClusterFailed
from e2e.cluster.spec import Network

MAX_NODES = 9


def build_inside(network: Network) -> None:
    """Run by pid 1 in the new network namespace."""
    _ip("link", "set", "lo", "up")
    _ip("link", "add", "br0", "type", "bridge")
    for address in (network.api, *(network.node(index) for index in range(1, MAX_NODES + 1))):
        _ip("address", "add", f"{address}/24", "dev", "br0")
    _ip("link", "set", "br0", "up")
    # services from this namespace itself: routing comes before kube-proxy's rules
    _ip("route", "add", network.services, "dev", "br0", "src", network.api)


def link_machine(network: Network, pid: int) -> None:
    """Run by the supervisor on the machine; `pid` is any process in the namespace."""
    _ip("link", "add", network.label, "type", "veth", "peer", "name", "up0", "netns", str(pid))
    _run("nsenter", "-t", str(pid), "-n", "ip", "link", "set", "up0", "master", "br0", "up")
    _ip("address", "add", f"{network.host}/24", "dev", network.label)
    _ip("link", "set", network.label, "up")
    _ip("route", "add", network.address("0.0/16"), "via", network.api, "dev", network.label, "src", network.host)


def unlink_machine(network: Network) -> None:
    """The kernel does this when the namespace dies, but not at once."""
    subprocess.run(["ip", "link", "delete", network.label], capture_output=True, check=False)


def is_routed(network: Network) -> bool:
    """Whether the machine already has a route into this range, ours or someone else's."""
    return any(line.startswith(network.address("")) for line in _ip("-4", "route").splitlines())


def _ip(*arguments: str) -> str:
    return _run("ip", *arguments)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClusterFailed(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
    return done.stdout
