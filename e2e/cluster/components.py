"""Component processes: started from the one binary under their own names, each with a log file.

Used by whatever runs a control plane or a node; the processes die with the one that started them.
"""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.binary import COMPONENTS
from e2e.cluster.environment import clean_environment
from e2e.cluster.errors import ClusterFailed
from e2e.cluster.lifeline import die_with_parent

TAIL_BYTES = 3000


@dataclass(frozen=True)
class Command:
    """A component's name and arguments."""

    component: str
    arguments: tuple[str, ...]


def link_components(binary: Path, folder: Path) -> None:
    """The multi-call binary under each component's name in `folder`/bin."""
    links = folder / "bin"
    links.mkdir()
    for name in COMPONENTS:
        (links / name).symlink_to(binary)


class Components:
    """The running components of one process, by name."""

    def __init__(self, folder: Path, logs: Path) -> None:
        self._folder = folder
        self._logs = logs
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, command: Command, *, outlive_parent: bool = False) -> int:
        """Starts it in the cluster's folder, in a session of its own; returns its pid."""
        with (self._logs / f"{command.component}.log").open("ab") as log:
            process = subprocess.Popen(
                [str(self._folder / "bin" / command.component), *command.arguments],
                cwd=self._folder,
                env=clean_environment(os.environ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=None if outlive_parent else die_with_parent,  # noqa: PLW1509 - our processes have one thread
            )
        self._running[command.component] = process
        return process.pid

    def check(self) -> None:
        """Raises ClusterFailed, with the end of its log, when a component has ended."""
        for name, process in self._running.items():
            if process.poll() is not None:
                raise ClusterFailed(f"{name} ended with {process.returncode}: {tail(self._logs / f'{name}.log')}")

    def name_of(self, pid: int) -> str | None:
        return next((name for name, process in self._running.items() if process.pid == pid), None)

    def stop(self) -> None:
        """Kills all: state goes with the folder, so nothing needs to end well."""
        for process in self._running.values():
            process.kill()
        for process in self._running.values():
            process.wait()
        self._running.clear()


def tail(log: Path) -> str:
    """The last lines of a log, for messages."""
    if not log.exists():
        return "(no log)"
    return "\n" + log.read_bytes()[-TAIL_BYTES:].decode(errors="replace")
