"""Cgroups of a cluster: one folder for it in each hierarchy, below it one for the control plane and one per node.

Works on cgroup v1 (a hierarchy per controller) and v2 (one for all). The machine's other cgroups are left alone.
"""

import os
import time
from pathlib import Path

MOUNT = Path("/sys/fs/cgroup")
CPUSET_FILES = ("cpuset.cpus", "cpuset.mems")  # empty in a new v1 group, and no process can enter while they are
EMPTY_SECONDS = 10.0
POLL_SECONDS = 0.05


def create(path: str) -> None:
    """The group `path` (such as tg-200/node1) everywhere, able to hold processes and groups."""
    for hierarchy in _hierarchies():
        group = hierarchy
        for part in path.split("/"):
            parent, group = group, group / part
            if _is_v2():
                _delegate_controllers(parent)
            group.mkdir(exist_ok=True)
            for name in CPUSET_FILES:
                if not _is_v2() and (group / name).exists():
                    (group / name).write_text((parent / name).read_text())


def enter(path: str) -> None:
    """Moves this process; its children follow."""
    for hierarchy in _hierarchies():
        (hierarchy / path / "cgroup.procs").write_text(str(os.getpid()))


def remove(path: str) -> None:
    """Removes the group once its killed processes are gone. Raises OSError where one stays."""
    deadline = time.monotonic() + EMPTY_SECONDS
    for group in [MOUNT / path, *MOUNT.glob(f"*/{path}")]:  # runc makes one in v1's `unified` too
        while group.exists():
            try:
                _remove_tree(group)
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(POLL_SECONDS)


def _remove_tree(group: Path) -> None:
    for folder, _, _ in os.walk(group, topdown=False):
        Path(folder).rmdir()


def _is_v2() -> bool:
    return (MOUNT / "cgroup.controllers").exists()


def _hierarchies() -> list[Path]:
    if _is_v2():
        return [MOUNT]
    return [path for path in MOUNT.iterdir() if (path / "cgroup.procs").exists() and path.name != "unified"]


def _delegate_controllers(group: Path) -> None:
    controllers = (group / "cgroup.controllers").read_text().split()
    (group / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in controllers))
