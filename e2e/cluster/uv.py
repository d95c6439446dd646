"""uv, which installs Python packages into folders for us: into the operator's image, and Go where it is missing."""

import os
import subprocess
import sys
from pathlib import Path

from e2e.cluster.environment import clean_environment
from e2e.cluster.errors import BuildFailed, MissingTool
from e2e.cluster.paths import cache_home


def install_locked(lock: Path, folder: Path) -> None:
    """The packages of a lock, with exactly its hashes, and their bytecode. Raises ClusterError."""
    command = [str(_uv()), "pip", "install", "--quiet", "--python", sys.executable, "--target", str(folder)]
    command += ["--require-hashes", "--no-deps", "--compile-bytecode", "-r", str(lock)]
    environment = clean_environment(os.environ)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildFailed(f"`{' '.join(command)}` failed: {done.stderr.strip()}")


def _uv() -> Path:
    uv = Path(os.environ.get("UV") or cache_home() / "uv" / "bin" / "uv")
    if uv.exists():
        return uv
    raise MissingTool(f"uv is not at {uv}: run `make install`, or set UV to an installed one")
