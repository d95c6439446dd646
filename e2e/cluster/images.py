"""The images that a node of a local cluster holds, built here and cached by what they are made of.

    localhost/pause:1                the sandbox process of every pod: 129 bytes of machine code
    localhost/tidegate-python:KEY    this interpreter with its shared libraries
    localhost/tidegate-operator:KEY  that + the packages of requirements-operator.lock + our source: self-contained
    localhost/tidegate-engine:KEY    that + our source; its packages come from a volume at /opt/venv (5 GB of torch)

In both images `python -m tidegate_cli ...` runs as user 10001 on a read-only root with a writable /tmp.
"""

import fcntl
import hashlib
import inspect
import shutil
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from e2e.cluster.interpreter import Interpreter
from e2e.cluster.node import PAUSE_IMAGE
from e2e.cluster.oci import Blob, Image, open_layer, write_archive
from e2e.cluster.paths import REPOSITORY, cache_home
from e2e.cluster.source_layer import APPLICATION, write_source_layer
from e2e.cluster.uv import install_locked
from e2e.cluster.volumes import VENV_MOUNT

SITE_PACKAGES = "/opt/site-packages"
OPERATOR_LOCK = REPOSITORY / "requirements-operator.lock"
COMMON = ("PYTHONDONTWRITEBYTECODE=1", "PYTHONUNBUFFERED=1", "HOME=/tmp", "LANG=C.UTF-8")
KEEP_SOURCES_SECONDS = 7 * 86_400.0
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"


@dataclass(frozen=True)
class BuiltImage:
    """An image by name, and the archives that bring it, to be loaded in this order."""

    name: str
    archives: tuple[Path, ...]


class ImageBuilder:
    """Builds into `cache`, whose files are named by content; a builder reads the project's source once."""

    def __init__(self, cache: Path, interpreter: Interpreter) -> None:
        self._cache = cache
        self._interpreter = interpreter

    @classmethod
    def default(cls) -> "ImageBuilder":
        return cls(cache_home() / "images", Interpreter.current())

    @cached_property
    def python(self) -> BuiltImage:
        """The interpreter; its archive brings the pause image too."""
        image = Image(_name("python", self._python_key), (self._python_layer,), _environment(SYSTEM_PATH))
        pause = Image(PAUSE_IMAGE, (self._layer("pause", _write_pause),), entrypoint=("/pause",))
        return BuiltImage(image.name, (self._archive(f"python-{self._python_key}", pause, image),))

    @cached_property
    def engine(self) -> BuiltImage:
        tag = _tag(self._python_layer, self._source_layer)
        environment = _environment(f"{VENV_MOUNT}/bin:{SYSTEM_PATH}", APPLICATION)
        image = Image(_name("engine", tag), (self._python_layer.as_base(), self._source_layer), environment)
        return BuiltImage(image.name, (*self.python.archives, self._archive(f"engine-{tag}", image)))

    @cached_property
    def operator(self) -> BuiltImage:
        """In two archives: packages that change with the lock, source that changes with every edit."""
        base, packages, source = self._python_layer.as_base(), self._operator_packages_layer, self._source_layer
        environment = _environment(SYSTEM_PATH, f"{APPLICATION}:{SITE_PACKAGES}")
        stage_tag, tag = _tag(base, packages), _tag(base, packages, source)
        stage = Image(_name("operator-packages", stage_tag), (base, packages), environment)
        image = Image(_name("operator", tag), (base, packages.as_base(), source), environment)
        archives = (self._archive(f"operator-packages-{stage_tag}", stage), self._archive(f"operator-{tag}", image))
        return BuiltImage(image.name, (*self.python.archives, *archives))

    @cached_property
    def _python_key(self) -> str:
        return self._interpreter.fingerprint()

    @cached_property
    def _python_layer(self) -> Blob:
        return self._layer(f"python-{self._python_key}", self._interpreter.write_layer)

    @cached_property
    def _operator_packages_layer(self) -> Blob:
        made_of = OPERATOR_LOCK.read_text() + sys.version + inspect.getsource(_write_operator_packages)
        key = hashlib.sha256(made_of.encode()).hexdigest()[:12]
        return self._layer(f"operator-packages-{key}", _write_operator_packages)

    @cached_property
    def _source_layer(self) -> Blob:
        """Written anew each time, which takes a second, and kept under its digest."""
        self._forget_old_sources()
        with tempfile.TemporaryDirectory() as folder:
            fresh = Path(folder) / "source.tar"
            write_source_layer(fresh)
            return self._layer(f"source-{_tag(Blob.of_file(fresh))}", lambda path: shutil.copyfile(fresh, path))

    def _forget_old_sources(self) -> None:
        """Every edit makes 6 MB here; after a week nobody runs them any more."""
        for pattern in ("source-*", "engine-*", "operator-[0-9a-f]*"):
            for path in self._cache.glob(pattern):
                if time.time() - path.stat().st_mtime > KEEP_SOURCES_SECONDS:
                    path.unlink(missing_ok=True)

    def _layer(self, name: str, write: Callable[[Path], object]) -> Blob:
        path = self._cache / f"{name}.layer.tar"
        with self._finishing(path) as unfinished:
            if unfinished:
                write(unfinished)
        return Blob.of_file(path)

    def _archive(self, name: str, *images: Image) -> Path:
        path = self._cache / f"{name}.oci.tar"
        with self._finishing(path) as unfinished:
            if unfinished:
                write_archive(unfinished, images)
        return path

    @contextmanager
    def _finishing(self, path: Path) -> Iterator[Path | None]:
        """Where to write what `path` shall hold, one writer at a time; None when it is there already."""
        if path.exists():
            yield None
            return
        self._cache.mkdir(parents=True, exist_ok=True)
        with (self._cache / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if path.exists():
                yield None
                return
            unfinished = path.with_suffix(".unfinished")
            yield unfinished
            unfinished.replace(path)


def _name(image: str, tag: str) -> str:
    return f"localhost/tidegate-{image}:{tag}"


def _tag(*layers: Blob) -> str:
    return hashlib.sha256(" ".join(layer.digest for layer in layers).encode()).hexdigest()[:12]


def _environment(path: str, python_path: str = "") -> tuple[str, ...]:
    return (*COMMON, f"PATH={path}", *((f"PYTHONPATH={python_path}",) if python_path else ()))


def _write_operator_packages(path: Path) -> None:
    """The operator's locked packages and nothing else: no torch."""
    with tempfile.TemporaryDirectory() as folder:
        install_locked(OPERATOR_LOCK, Path(folder))
        with open_layer(path) as layer:
            layer.folder(SITE_PACKAGES)
            layer.tree(Path(folder), SITE_PACKAGES, lambda name: not name.startswith("bin/"), keep_times=True)


def _write_pause(path: Path) -> None:
    """An ELF program for x86-64 that waits for signals forever."""
    code = b"\xb8\x22\x00\x00\x00\x0f\x05\xeb\xf7"  # again: mov eax, 34 (pause); syscall; jmp again
    base, start = 0x400000, 64 + 56
    size = start + len(code)
    identity = b"\x7fELF" + bytes([2, 1, 1, 0]) + bytes(8)
    header = identity + struct.pack("<HHIQQQIHHHHHH", 2, 62, 1, base + start, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, base, base, size, size, 0x1000)
    with open_layer(path) as layer:
        layer.data("pause", header + segment + code, 0o755)
