"""Mounts inside a cluster's own mount namespaces; the machine never sees them."""

import subprocess
from pathlib import Path

from e2e.cluster.errors import ClusterFailed


def bind(source: Path, target: Path) -> None:
    _mount("--bind", str(source), str(target))


def tmpfs(target: Path) -> None:
    _mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", str(target))


def overlay(target: Path, *, upper: Path, work: Path) -> None:
    """Writes to `target` go to `upper`; what was there stays visible."""
    _mount("-t", "overlay", "-o", f"lowerdir={target},upperdir={upper},workdir={work}", "overlay", str(target))


def is_mounted_below(folder: Path) -> bool:
    """Whether this process sees a mount anywhere under `folder`."""
    targets = (line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines())
    return any(target.startswith(f"{folder}/") for target in targets)


def _mount(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClusterFailed(f"`mount {' '.join(arguments)}` failed: {done.stderr.strip()}")
