"""A directory in the hub's own cache layout: what is in it, what is still to come, what may go.

    models--ORG--NAME/blobs/ETAG            whole files, by content
    models--ORG--NAME/blobs/ETAG.*.partial  begun; a later try continues it
    models--ORG--NAME/snapshots/COMMIT/FILE -> ../../blobs/ETAG

One process writes at a time: a pool's download Job, or a pod's own before its engine starts.
"""

import os
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

from tidegate_core.hub import Snapshot, repo_directory

PARTIAL_SUFFIX = ".partial"


class HubCache:
    """The cache below `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def file(self, snapshot: Snapshot, name: str) -> Path:
        return self.root / snapshot.directory / name

    def has(self, snapshot: Snapshot, name: str) -> bool:
        """A link whose blob is there: blobs only get their name when they are whole."""
        return self.file(snapshot, name).is_file()

    def blob(self, snapshot: Snapshot, etag: str) -> Path:
        """With its directory made."""
        directory = self.root / repo_directory(snapshot.repo) / "blobs"
        directory.mkdir(parents=True, exist_ok=True)
        return directory / etag

    def partial(self, snapshot: Snapshot, name: str, etag: str) -> Path:
        """Of its own for every name: files of the same content may be fetched side by side."""
        return self.blob(snapshot, f"{etag}.{name.replace('/', '_')}{PARTIAL_SUFFIX}")

    def link(self, snapshot: Snapshot, name: str, etag: str) -> None:
        """Relative, so that the volume may be mounted anywhere."""
        link, blob = self.file(snapshot, name), self.blob(snapshot, etag)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))

    def prune(self, kept: Collection[Snapshot]) -> list[str]:
        """Remove all but these snapshots and what they need; begun files of theirs stay. Names of what went."""
        directories = {self.root / snapshot.directory for snapshot in kept}
        stale = [each for each in self._snapshots() if each not in directories]
        for snapshot in stale:
            shutil.rmtree(snapshot)
        repos = {self.root / repo_directory(snapshot.repo) for snapshot in kept}
        for repo in self.root.glob("models--*"):
            if repo in repos:
                _remove_unlinked(repo)
            else:
                shutil.rmtree(repo)
        return [str(each.relative_to(self.root)) for each in stale]

    def _snapshots(self) -> Iterator[Path]:
        return self.root.glob("models--*/snapshots/*")


def _remove_unlinked(repo: Path) -> None:
    linked = {link.resolve() for link in repo.glob("snapshots/**/*") if link.is_symlink()}
    for blob in repo.glob("blobs/*"):
        if blob.resolve() not in linked and blob.suffix != PARTIAL_SUFFIX:
            blob.unlink()
