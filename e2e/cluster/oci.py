"""OCI layers, images and archives written by tarfile: no registry, no build tool.

An archive may leave out the layers of a base image that a node already holds, so an image that adds a little to a big
one is an archive of a few kilobytes.
"""

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

MEDIA = "application/vnd.oci.image"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@contextmanager
def open_layer(path: Path) -> Iterator["LayerWriter"]:
    """An uncompressed layer to be written."""
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        yield LayerWriter(tar)


class LayerWriter:
    """Entries of a layer, each path once; everything belongs to root."""

    def __init__(self, tar: tarfile.TarFile) -> None:
        self._tar = tar
        self._written: set[str] = set()

    def folder(self, path: str, mode: int = 0o755) -> None:
        """A folder and those above it."""
        *above, _ = (parts := path.strip("/").split("/"))
        for depth in range(1, len(above) + 1):
            self._add(self._entry("/".join(parts[:depth]), 0o755, tarfile.DIRTYPE))
        self._add(self._entry(path, mode, tarfile.DIRTYPE))

    def link(self, path: str, target: str) -> None:
        entry = self._entry(path, 0o777, tarfile.SYMTYPE)
        entry.linkname = target
        self._add(entry)

    def text(self, path: str, text: str) -> None:
        self.data(path, text.encode(), 0o644)

    def data(self, path: str, data: bytes, mode: int) -> None:
        entry = self._entry(path, mode, tarfile.REGTYPE)
        entry.size = len(data)
        self._add(entry, io.BytesIO(data))

    def copy(self, source: Path, path: str) -> None:
        """One file of the machine, links followed."""
        self.data(path, source.read_bytes(), source.stat().st_mode & 0o777)

    def tree(self, source: Path, path: str, keep: Callable[[str], bool], *, keep_times: bool) -> None:
        """A folder of the machine with its links; `keep` sees paths relative to the folder.

        Times matter to bytecode that was checked by time; without them equal trees give equal layers.
        """
        for file in sorted(source.rglob("*")):
            name = file.relative_to(source).as_posix()
            if not keep(name):
                continue
            entry = self._tar.gettarinfo(file, f"{path.strip('/')}/{name}")
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            entry.mtime = int(entry.mtime) if keep_times else 0
            entry.mode |= 0o444 if entry.isreg() else 0o555
            if entry.isreg():
                with file.open("rb") as content:
                    self._add(entry, content)
            else:
                self._add(entry)

    @staticmethod
    def _entry(path: str, mode: int, kind: bytes) -> tarfile.TarInfo:
        entry = tarfile.TarInfo(path.strip("/"))
        entry.mode, entry.type = mode, kind
        return entry

    def _add(self, entry: tarfile.TarInfo, content: io.BufferedIOBase | None = None) -> None:
        if entry.name not in self._written:
            self._written.add(entry.name)
            self._tar.addfile(entry, content)


@dataclass(frozen=True)
class Blob:
    """Something by its digest; `path` is None where it is a layer of a base image and stays out of the archive."""

    digest: str
    num_bytes: int
    path: Path | None = None

    @classmethod
    def of_file(cls, path: Path) -> "Blob":
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return cls(f"sha256:{digest}", path.stat().st_size, path)

    def as_base(self) -> "Blob":
        return Blob(self.digest, self.num_bytes)


@dataclass(frozen=True)
class Image:
    """An image: its full name, its layers from the bottom up, and how it runs."""

    name: str
    layers: tuple[Blob, ...]
    environment: tuple[str, ...] = ()
    entrypoint: tuple[str, ...] = ()
    user: str = "10001:10001"

    def configuration(self) -> bytes:
        machine = platform.machine()
        facts = {
            "architecture": ARCHITECTURES.get(machine, machine),
            "os": "linux",
            "config": {"Env": list(self.environment), "Entrypoint": list(self.entrypoint), "User": self.user},
            "rootfs": {"type": "layers", "diff_ids": [layer.digest for layer in self.layers]},
        }
        return json.dumps(facts, sort_keys=True).encode()


@dataclass
class Archive:
    """An OCI archive in the making."""

    blobs: dict[str, bytes | Path] = field(default_factory=dict)
    manifests: list[dict[str, object]] = field(default_factory=list)

    def add(self, image: Image) -> None:
        layers = [_descriptor(f"{MEDIA}.layer.v1.tar", layer.digest, layer.num_bytes) for layer in image.layers]
        for layer in image.layers:
            if layer.path:
                self.blobs[layer.digest] = layer.path
        manifest = {
            "schemaVersion": 2,
            "mediaType": f"{MEDIA}.manifest.v1+json",
            "config": self._put(f"{MEDIA}.config.v1+json", image.configuration()),
            "layers": layers,
        }
        names = {
            "io.containerd.image.name": image.name,
            "org.opencontainers.image.ref.name": image.name.rpartition(":")[2],
        }
        descriptor = self._put(f"{MEDIA}.manifest.v1+json", json.dumps(manifest, sort_keys=True).encode())
        self.manifests.append(descriptor | {"annotations": names})

    def write(self, path: Path) -> None:
        index = {"schemaVersion": 2, "mediaType": f"{MEDIA}.index.v1+json", "manifests": self.manifests}
        with open_layer(path) as tar:
            tar.text("oci-layout", json.dumps({"imageLayoutVersion": "1.0.0"}))
            tar.text("index.json", json.dumps(index))
            for digest, content in self.blobs.items():
                name = f"blobs/{digest.replace(':', '/')}"
                tar.data(name, content if isinstance(content, bytes) else content.read_bytes(), 0o644)

    def _put(self, media_type: str, content: bytes) -> dict[str, object]:
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        self.blobs[digest] = content
        return _descriptor(media_type, digest, len(content))


def write_archive(path: Path, images: Sequence[Image]) -> None:
    archive = Archive()
    for image in images:
        archive.add(image)
    archive.write(path)


def _descriptor(media_type: str, digest: str, num_bytes: int) -> dict[str, object]:
    return {"mediaType": media_type, "digest": digest, "size": num_bytes}
