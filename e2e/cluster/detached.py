"""Clusters that live on without their owner: found by their slots, ended by a signal to their supervisors."""

import os
import signal
import time
from pathlib import Path

from e2e.cluster.errors import ClusterFailed
from e2e.cluster.slots import is_held
from e2e.cluster.spec import ClusterSpec

END_SECONDS = 120.0
POLL_SECONDS = 0.05


def detached_clusters(home: Path) -> list[ClusterSpec]:
    """Those that are up: started by `python -m e2e.cluster up`, not by a test session."""
    folders = sorted(path.parent for path in home.glob("*/ready"))
    specs = [_read(folder) for folder in folders if is_held(folder)]
    return [spec for spec in specs if spec and spec.is_detached]


def _read(folder: Path) -> ClusterSpec | None:
    try:
        return ClusterSpec.read(folder)
    except FileNotFoundError:  # it is being removed at this moment
        return None


def end(spec: ClusterSpec) -> None:
    """Returns when nothing of it is left."""
    os.kill(int(spec.supervisor_pid_file.read_text()), signal.SIGTERM)
    deadline = time.monotonic() + END_SECONDS
    while is_held(spec.folder):
        if time.monotonic() > deadline:
            raise ClusterFailed(
                f"{spec.name} did not end in {END_SECONDS:.0f} s; kill its supervisor and start another"
            )
        time.sleep(POLL_SECONDS)
