"""The download of a snapshot into a cache: several files at once, each continued where an earlier try ended.

A pool downloads once and its pods are killed at any moment, so what arrived must count: huggingface_hub's own download
begins a file anew in every process, so only its request (`http_get`) is used here, on a file that stays.
A hub that throttles or does not answer is asked again, later and later and never in step with other pools.
"""

import random
import time
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from hashlib import file_digest
from pathlib import Path

from huggingface_hub.file_download import HfFileMetadata, http_get

from tidegate_checkpoint.errors import CorruptCheckpoint
from tidegate_core.hub import Snapshot
from tidegate_engine.hub.cache import HubCache
from tidegate_engine.hub.client import Hub
from tidegate_engine.hub.errors import HubError, HubThrottled, HubUnreachable, asking
from tidegate_engine.hub.selection import Selection

NUM_FILES_AT_ONCE = 4
MAX_TRIES = 8  # without a byte of progress; then the Job ends and the operator waits longer
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 2.0, 60.0
JITTER = 0.5
_SHA256_CHARACTERS = 64  # the ETag of a large file; small ones have git's, which is of another form


@dataclass(frozen=True)
class Patience:
    """How a hub is waited for; time and chance come from outside."""

    sleep: Callable[[float], None] = time.sleep
    rng: random.Random = random.Random()  # noqa: RUF009 - one for the process

    def wait(self, num_tries: int, error: HubError) -> None:
        """At least as long as the hub asks for."""
        usual = min(FIRST_WAIT_SECONDS * 2.0 ** (num_tries - 1), LONGEST_WAIT_SECONDS)
        seconds = max(usual, error.retry_after_seconds or 0)
        self.sleep(seconds * (1 + self.rng.random() * JITTER))


def download(
    hub: Hub, selection: Selection, cache: HubCache, patience: Patience, on_file: Callable[[str], None]
) -> Path:
    """The path an engine is given, once every file is there. Raises HubError or CorruptCheckpoint."""
    snapshot = selection.snapshot
    missing = [name for name in selection.bytes_by_name if not cache.has(snapshot, name)]

    def fetch(name: str) -> None:
        fetch_file(hub, snapshot, name, cache, patience)
        on_file(name)

    with ThreadPoolExecutor(NUM_FILES_AT_ONCE, thread_name_prefix="download") as threads:
        work = [threads.submit(fetch, name) for name in missing]
        done, pending = wait(work, return_when=FIRST_EXCEPTION)
        for future in pending:
            future.cancel()
    for future in done:
        future.result()
    return cache.root / snapshot.path


def fetch_file(hub: Hub, snapshot: Snapshot, name: str, cache: HubCache, patience: Patience) -> None:
    """Tries are counted anew whenever bytes arrived."""
    num_tries, had_bytes = 0, -1
    while True:
        try:
            metadata = hub.locate(snapshot.repo, snapshot.commit, name)
            assert metadata.etag is not None, "the client refuses files without one"
            blob = cache.blob(snapshot, metadata.etag)
            if not blob.is_file():  # else the same content came with another name or revision
                partial = cache.partial(snapshot, name, metadata.etag)
                _continue(hub, snapshot, metadata, partial)
                partial.replace(blob)
        except (HubThrottled, HubUnreachable) as error:
            has_bytes = _num_bytes(cache, snapshot)
            num_tries = 1 if has_bytes > had_bytes else num_tries + 1
            had_bytes = has_bytes
            if num_tries >= MAX_TRIES:
                raise
            patience.wait(num_tries, error)
        else:
            cache.link(snapshot, name, metadata.etag)
            return


def _continue(hub: Hub, snapshot: Snapshot, metadata: HfFileMetadata, partial: Path) -> None:
    """What is put together from several tries is hashed before it counts."""
    with partial.open("ab") as file:
        had_bytes = file.tell()
        if metadata.size is not None and had_bytes > metadata.size:
            file.truncate(0)
            had_bytes = 0
        with asking(hub.endpoint, snapshot.repo, snapshot.commit, has_token=hub.has_token):
            http_get(
                metadata.location,
                file,
                resume_size=had_bytes,
                headers=hub.headers_for(metadata.location),
                expected_size=metadata.size,
                displayed_filename=partial.name,
            )
    if had_bytes and len(metadata.etag or "") == _SHA256_CHARACTERS:
        with partial.open("rb") as file:
            digest = file_digest(file, "sha256").hexdigest()
        if digest != metadata.etag:
            partial.unlink()
            raise CorruptCheckpoint(f"{snapshot.name}: a file arrived damaged (SHA-256 {digest}); it is fetched again")


def _num_bytes(cache: HubCache, snapshot: Snapshot) -> int:
    """Of everything that arrived."""
    return sum(each.stat().st_size for each in cache.blob(snapshot, "x").parent.iterdir() if each.is_file())
