"""What the stand-in for a hub holds: repositories of one commit each, with names for it and rules who may read."""

from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha1, sha256
from pathlib import Path

LARGE_BYTES = 64 * 1024  # from here on a file is kept in large file storage: another ETag, another place


@dataclass(frozen=True)
class HubFile:
    """A file of a repository; `path` is where its bytes are."""

    name: str
    path: Path

    @property
    def num_bytes(self) -> int:
        return self.path.stat().st_size

    @property
    def is_large(self) -> bool:
        return self.num_bytes >= LARGE_BYTES

    @cached_property
    def sha256(self) -> str:
        return sha256(self.path.read_bytes()).hexdigest()

    @cached_property
    def blob_id(self) -> str:
        """As git names it."""
        content = self.path.read_bytes()
        return sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()

    @property
    def etag(self) -> str:
        return self.sha256 if self.is_large else self.blob_id


@dataclass
class Repository:
    """Files below `directory` as one commit. `is_gated`: read with an accepted token; `is_private`: unknown without."""

    name: str
    directory: Path
    is_gated: bool = False
    is_private: bool = False
    refs: tuple[str, ...] = ("main",)
    accepted_tokens: set[str] = field(default_factory=set)

    @cached_property
    def files(self) -> dict[str, HubFile]:
        paths = sorted(path for path in self.directory.rglob("*") if path.is_file())
        names = [str(path.relative_to(self.directory)) for path in paths]
        return {name: HubFile(name, path) for name, path in zip(names, paths, strict=True)}

    @cached_property
    def commit(self) -> str:
        listed = "\n".join(f"{name} {file.blob_id}" for name, file in self.files.items())
        return sha1(listed.encode(), usedforsecurity=False).hexdigest()

    def has_revision(self, revision: str) -> bool:
        return revision == self.commit or revision in self.refs


def repositories_below(root: Path) -> list[Repository]:
    """ROOT/ORG/NAME is a repository; a file `.gated` in it that lists tokens makes it gated."""
    found = []
    for directory in sorted(path for path in root.glob("*/*") if path.is_dir()):
        gate = directory / ".gated"
        tokens = set(gate.read_text().split()) if gate.is_file() else set()
        name = f"{directory.parent.name}/{directory.name}"
        found.append(Repository(name, directory, is_gated=gate.is_file(), accepted_tokens=tokens))
    return found
