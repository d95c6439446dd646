"""Where clusters keep things: caches by content under the user's cache home, running clusters under /tmp.

Nothing is ever written into the work tree, and nothing under /run: each node mounts its own /run over it.
"""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCE = Path(__file__).resolve().parent / "src"


def cache_home(environ: Mapping[str, str] = os.environ) -> Path:
    """`${XDG_CACHE_HOME:-~/.cache}/tidegate`: the compiled binary, images, the lock of installed wheels."""
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tidegate"


def run_home() -> Path:
    """The folder of running clusters, one per user: names in /tmp belong to whoever comes first."""
    home = Path(tempfile.gettempdir()) / f"tidegate-clusters-{os.getuid()}"
    home.mkdir(mode=0o700, exist_ok=True)
    if home.stat().st_uid != os.getuid():
        raise PermissionError(f"{home} belongs to another user; remove it or set TMPDIR to a folder of your own")
    return home
