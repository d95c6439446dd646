"""Which files of a repository an engine needs: a third of a typical one, the rest are other frameworks' weights.

Either config, tokenizer and the safetensors that its index names, or one GGUF file. Decides; only the index is read.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from huggingface_hub import constants

from tidegate_checkpoint.errors import CorruptCheckpoint, UnsupportedCheckpoint
from tidegate_checkpoint.location import CONFIG_FILE
from tidegate_checkpoint.safetensors import INDEX_FILE, SINGLE_FILE
from tidegate_core.hub import HubSource, Snapshot
from tidegate_engine.hub.client import Hub, Listing
from tidegate_engine.hub.errors import ModelNotFound

MAX_FILE_BYTES = constants.MAX_HTTP_DOWNLOAD_SIZE
SIDE_FILES = (
    CONFIG_FILE, "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
    INDEX_FILE,
)  # fmt: skip


@dataclass(frozen=True)
class Selection:
    """A snapshot's files with their sizes; `weights` are those of which the head is enough to know the shape."""

    snapshot: Snapshot
    weights: tuple[str, ...]
    bytes_by_name: Mapping[str, int]

    @property
    def num_bytes(self) -> int:
        return sum(self.bytes_by_name.values())


def select(hub: Hub, source: HubSource, revision: str) -> Selection:
    """Raises HubError, UnsupportedCheckpoint or CorruptCheckpoint."""
    listing = hub.list(source.repo, revision)
    file = source.file or _only_gguf(listing)
    if file is not None and file not in listing.bytes_by_name:
        raise ModelNotFound(f"{source.repo}@{revision} has no file {file}; correct model.uri")
    weights = (file,) if file is not None else _safetensors(hub, listing)
    beside = () if file is not None else tuple(each for each in SIDE_FILES if each in listing.bytes_by_name)
    names = (*beside, *weights)
    sizes = {name: _size(hub, listing, name) for name in names}
    return Selection(Snapshot(source.repo, listing.commit, file), weights, sizes)


def _only_gguf(listing: Listing) -> str | None:
    """The GGUF file of a repository that holds nothing else to serve."""
    names = [name for name in listing.bytes_by_name if "/" not in name]
    if any(name.endswith(".safetensors") for name in names):
        return None
    ggufs = sorted(name for name in names if name.endswith(".gguf") and not name.startswith("mmproj"))
    if len(ggufs) > 1:
        some = ", ".join(ggufs[:8]) + (", ..." if len(ggufs) > 8 else "")
        raise UnsupportedCheckpoint(
            f"{listing.repo} holds {len(ggufs)} GGUF files ({some}): name one, as in hf://{listing.repo}/{ggufs[0]}"
        )
    if not ggufs:
        raise UnsupportedCheckpoint(f"{listing.repo} holds neither safetensors nor GGUF files; choose another model")
    return ggufs[0]


def _safetensors(hub: Hub, listing: Listing) -> tuple[str, ...]:
    """The files that tidegate_checkpoint.safetensors would read."""
    names = listing.bytes_by_name
    if INDEX_FILE in names:
        return _shards(hub.read(listing.repo, listing.commit, INDEX_FILE), listing)
    if SINGLE_FILE in names:
        return (SINGLE_FILE,)
    found = sorted(name for name in names if name.endswith(".safetensors") and "/" not in name)
    if len(found) != 1:
        raise UnsupportedCheckpoint(f"{listing.repo} has neither {SINGLE_FILE} nor {INDEX_FILE}; choose another model")
    return (found[0],)


def _shards(index: bytes, listing: Listing) -> tuple[str, ...]:
    try:
        shards = sorted(set(map(str, json.loads(index)["weight_map"].values())))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptCheckpoint(f"{listing.repo}: {INDEX_FILE} is not an index of tensors") from error
    if missing := [shard for shard in shards if shard not in listing.bytes_by_name]:
        raise CorruptCheckpoint(f"{listing.repo}: {INDEX_FILE} names {missing[0]}, which the repository does not hold")
    return tuple(shards)


def _size(hub: Hub, listing: Listing, name: str) -> int:
    known = listing.bytes_by_name[name]
    if known is None:
        known = hub.locate(listing.repo, listing.commit, name).size
    if known is None:
        raise UnsupportedCheckpoint(f"{hub.endpoint} tells no size of {listing.repo}/{name}; use another mirror")
    if known > MAX_FILE_BYTES:
        raise UnsupportedCheckpoint(
            f"{listing.repo}/{name} has {known:,} bytes; files above {MAX_FILE_BYTES:,} cannot be fetched in one "
            "piece: use a copy in smaller files, or bring it on a claim (pvc://)"
        )
    return known
