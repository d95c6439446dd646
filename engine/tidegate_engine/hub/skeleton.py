"""A model's shape without its weights: its small files and the heads of the large ones, read from the hub in parts.

What is read lies in a directory as a download would lie there, each weight file with its true length and a hole where
the weights would be, so that tidegate_checkpoint reads it as it reads every other model.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

from tidegate_checkpoint.errors import CheckpointError
from tidegate_checkpoint.gguf import read_gguf
from tidegate_checkpoint.safetensors import MAX_HEADER_BYTES
from tidegate_checkpoint.shape import read_shape
from tidegate_core.hub import HubSource
from tidegate_core.inspected import Inspected
from tidegate_core.shape import ModelShape
from tidegate_engine.hub.client import Hub
from tidegate_engine.hub.selection import Selection, select

FIRST_READ_BYTES = 128 * 1024  # holds the head of most safetensors files
FIRST_GGUF_READ_BYTES = 2 * 1024 * 1024  # a vocabulary lies in it
GROWTH = 4
_LENGTH_BYTES = 8


def inspect(hub: Hub, uri: str, revision: str) -> Inspected:
    """Of hf://ORG/NAME. Raises HubError, CheckpointError or CoreError."""
    selection = select(hub, HubSource.parse(uri), revision)
    return Inspected(shape_of(hub, selection), selection.snapshot, selection.num_bytes)


def shape_of(hub: Hub, selection: Selection) -> ModelShape:
    """Some hundred kilobytes are read whatever the model's size; a GGUF file's vocabulary takes a few megabytes."""
    with TemporaryDirectory(prefix="tidegate-") as folder:
        directory = Path(folder)
        for name in selection.bytes_by_name:
            if name not in selection.weights:
                snapshot = selection.snapshot
                (directory / name).write_bytes(hub.read(snapshot.repo, snapshot.commit, name))
        for name in selection.weights:
            path = directory / Path(name).name
            if selection.snapshot.file is None:
                _write_safetensors_head(hub, selection, name, path)
            else:
                _write_gguf_head(hub, selection, name, path)
                return read_shape(path)
        return read_shape(directory)


def _write_safetensors_head(hub: Hub, selection: Selection, name: str, path: Path) -> None:
    """The first bytes tell the head's length; a file that lies about it is left to the reader to refuse."""
    head = _first_bytes(hub, selection, name, FIRST_READ_BYTES)
    head_bytes = _LENGTH_BYTES + int.from_bytes(head[:_LENGTH_BYTES], "little")
    if len(head) < head_bytes <= min(selection.bytes_by_name[name], MAX_HEADER_BYTES):
        head = _first_bytes(hub, selection, name, head_bytes)
    _write(path, head, selection.bytes_by_name[name])


def _write_gguf_head(hub: Hub, selection: Selection, name: str, path: Path) -> None:
    """A GGUF file does not say how long its head is: more is read until no tensor begins inside the hole."""
    size, num_bytes = selection.bytes_by_name[name], FIRST_GGUF_READ_BYTES
    while True:
        _write(path, _first_bytes(hub, selection, name, min(num_bytes, size)), size)
        if num_bytes >= size or _is_complete(path, num_bytes):
            return
        num_bytes *= GROWTH


def _is_complete(path: Path, num_bytes: int) -> bool:
    try:
        starts = [tensor.offset_bytes for tensor in read_gguf(path).tensors]
    except CheckpointError:  # perhaps only for the hole
        return False
    return bool(starts) and min(starts) <= num_bytes


def _first_bytes(hub: Hub, selection: Selection, name: str, num_bytes: int) -> bytes:
    return hub.read(selection.snapshot.repo, selection.snapshot.commit, name, num_bytes=num_bytes)


def _write(path: Path, head: bytes, num_bytes: int) -> None:
    with path.open("wb") as file:
        file.write(head)
        file.truncate(num_bytes)
