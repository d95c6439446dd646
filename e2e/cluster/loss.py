"""Loses a node as a power cut does: every process of it ends at once, and nobody is told.

Used by scenarios about lost nodes, through Cluster.lose_node().
"""

import os
import signal
from pathlib import Path

from e2e.cluster.cgroups import MOUNT
from e2e.cluster.node import NodeFiles
from e2e.cluster.spec import ClusterSpec

PROC = Path("/proc")


def cut_power(spec: ClusterSpec, files: NodeFiles) -> None:
    """Kills kubelet, container runtime and containers; the Node object stays, as it would."""
    assert spec.network, "only clusters with nodes have nodes"
    group = f"{spec.network.label}/{files.name}"
    folders = {_mounts(pid) for pid in _pids() if _is_kubelet(pid, files)}
    components = [pid for pid in _pids() if _mounts(pid) in folders and _mounts(pid)]
    containers = [int(pid) for procs in _groups(group) for pid in procs.read_text().split()]
    for pid in {*components, *containers}:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue  # it ended with one of the others


def _pids() -> list[int]:
    return [int(entry.name) for entry in PROC.iterdir() if entry.name.isdecimal()]


def _is_kubelet(pid: int, files: NodeFiles) -> bool:
    try:
        words = (PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False  # ended meanwhile
    return f"--config={files.folder / 'kubelet.json'}".encode() in words


def _mounts(pid: int) -> str:
    """Its mount namespace; the empty text where the process is gone."""
    try:
        return str((PROC / str(pid) / "ns" / "mnt").readlink())
    except OSError:
        return ""


def _groups(path: str) -> list[Path]:
    """The process lists of a cgroup and all below it, in every hierarchy."""
    roots = [root for root in (MOUNT / path, *MOUNT.glob(f"*/{path}")) if root.is_dir()]
    return [procs for root in roots for procs in root.rglob("cgroup.procs")]
