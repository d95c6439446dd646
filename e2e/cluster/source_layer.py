"""The project's source as an image layer under /app, with bytecode: equal sources give an equal layer.

Bytecode is of the unchecked kind, because the root of a pod is read-only and times are not kept.
"""

import compileall
import shutil
import tempfile
import tomllib
from pathlib import Path
from py_compile import PycInvalidationMode

from e2e.cluster.errors import BuildFailed
from e2e.cluster.oci import open_layer
from e2e.cluster.paths import REPOSITORY

APPLICATION = "/app"


def write_source_layer(path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        staged = Path(folder)
        for package in sorted([*REPOSITORY.glob("operator/tidegate_*"), *REPOSITORY.glob("engine/tidegate_*")]):
            shutil.copytree(package, staged / package.name, ignore=shutil.ignore_patterns("__pycache__"))
        _compile(staged)
        _describe(staged)
        with open_layer(path) as layer:
            layer.folder(APPLICATION)
            layer.tree(staged, APPLICATION, lambda _: True, keep_times=False)


def _compile(staged: Path) -> None:
    mode = PycInvalidationMode.UNCHECKED_HASH
    if not compileall.compile_dir(
        staged, quiet=1, force=True, invalidation_mode=mode, stripdir=str(staged), prependdir=APPLICATION
    ):
        raise BuildFailed("the project's source does not compile, see the lines above")


def _describe(staged: Path) -> None:
    """So that importlib.metadata knows the version, as it does where the wheel is installed."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    folder = staged / f"tidegate-{project['version']}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.4\nName: tidegate\nVersion: {project['version']}\n")
