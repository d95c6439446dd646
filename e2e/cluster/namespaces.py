"""Namespaces of a cluster with nodes: made by unshare, entered by nsenter.

Called by the supervisor, which starts pid 1 in them, and by owners, who start nodes in them.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

from e2e.cluster import cgroups
from e2e.cluster.components import tail
from e2e.cluster.environment import clean_environment
from e2e.cluster.errors import ClusterFailed
from e2e.cluster.lifeline import die_with_parent
from e2e.cluster.links import link_machine
from e2e.cluster.paths import REPOSITORY
from e2e.cluster.spec import ClusterSpec

START_SECONDS = 60.0
POLL_SECONDS = 0.02


def start_pid_1(spec: ClusterSpec) -> subprocess.Popen[bytes]:
    """The namespaces with init.py in them; killing the returned process ends all of it. link_pid_1() comes next."""
    assert spec.network, "only clusters with nodes have namespaces"
    cgroups.create(f"{spec.network.label}/control-plane")
    unshare = ["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
    with (spec.logs / "init.log").open("ab") as log:
        return subprocess.Popen(
            [*unshare, sys.executable, "-m", "e2e.cluster.init", str(spec.folder)],
            cwd=REPOSITORY,
            env=clean_environment(os.environ),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - the supervisor has one thread
        )


def link_pid_1(spec: ClusterSpec, process: subprocess.Popen[bytes]) -> None:
    """Waits for the network inside and links the machine to it."""
    assert spec.network, "only clusters with nodes have namespaces"
    _wait_for_network(spec, process)
    pid = _only_child(process.pid)
    link_machine(spec.network, pid)
    spec.pid_file.write_text(str(pid))


def enter(spec: ClusterSpec, *command: str) -> list[str]:
    """`command` as it runs inside the namespaces, in the folder `/`."""
    return ["nsenter", "-t", spec.pid_file.read_text(), "--net", "--mount", "--pid", "--", *command]


def _wait_for_network(spec: ClusterSpec, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not spec.network_ready_file.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            words = spec.failure_file.read_text() if spec.failure_file.exists() else tail(spec.logs / "init.log")
            raise ClusterFailed(f"no namespaces for {spec.name}: {words}")
        time.sleep(POLL_SECONDS)


def _only_child(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text())
