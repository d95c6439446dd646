"""Models of a hub: how a URI names one, and where its files lie in a cache of the hub's own layout.

The operator writes these paths into pod templates, the download writes the files there, so the layout is a shared fact:
`models--ORG--NAME/snapshots/COMMIT/FILE`, each file a link to `models--ORG--NAME/blobs/ETAG`.
"""

import re
from dataclasses import dataclass
from typing import Self

from tidegate_core.errors import BadModelUri

SCHEME = "hf://"
DEFAULT_REVISION = "main"
_PART = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
_URI = re.compile(rf"hf://({_PART}/{_PART})(?:/((?:{_PART}/)*{_PART}\.gguf))?")


@dataclass(frozen=True)
class HubSource:
    """A repository, and the GGUF file in it that is meant where it holds several."""

    repo: str
    file: str | None = None

    @classmethod
    def parse(cls, uri: str) -> Self:
        """Raises BadModelUri."""
        match = _URI.fullmatch(uri)
        if match is None:
            raise BadModelUri(f"{uri} is not hf://ORG/NAME or hf://ORG/NAME/FILE.gguf")
        return cls(match[1], match[2])


@dataclass(frozen=True)
class Snapshot:
    """A repository at one commit; `file` is the GGUF file to serve, None for a directory of safetensors."""

    repo: str
    commit: str
    file: str | None = None

    @property
    def directory(self) -> str:
        """Below the cache's root."""
        return f"{repo_directory(self.repo)}/snapshots/{self.commit}"

    @property
    def path(self) -> str:
        """What an engine is given, below the cache's root."""
        return f"{self.directory}/{self.file}" if self.file else self.directory

    @property
    def name(self) -> str:
        """ORG/NAME@COMMIT: what a cache is said to hold."""
        return f"{self.repo}@{self.commit}"


def parse_name(name: str) -> Snapshot:
    """The other direction of Snapshot.name. Raises BadModelUri."""
    match = re.fullmatch(rf"({_PART}/{_PART})@([0-9a-f]{{40}})", name)
    if match is None:
        raise BadModelUri(f"{name} is not ORG/NAME@COMMIT")
    return Snapshot(match[1], match[2])


def repo_directory(repo: str) -> str:
    """Where a cache keeps all of one repository."""
    return "models--" + repo.replace("/", "--")
