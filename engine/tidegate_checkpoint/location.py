"""Which of the supported forms a model path has, and the error when it has none.

Called first by everything that opens a model: sizing, weights, tokenizer.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from tidegate_checkpoint.errors import MissingCheckpoint, UnsupportedCheckpoint

CONFIG_FILE = "config.json"


class CheckpointKind(StrEnum):
    """Where the weights are."""

    SAFETENSORS = "safetensors"
    GGUF = "gguf"
    CONFIG = "config"  # config.json alone: the shape is known, the weights are not here


@dataclass(frozen=True)
class Location:
    """`path` is the .gguf file, or the directory that holds config.json."""

    kind: CheckpointKind
    path: Path


def locate(path: Path) -> Location:
    """Raises MissingCheckpoint or UnsupportedCheckpoint with what was found instead."""
    if path.is_file():
        return _locate_file(path)
    if not path.is_dir():
        raise MissingCheckpoint(f"model path {path} does not exist; mount or download the model there")
    has_config = (path / CONFIG_FILE).is_file()
    if any(path.glob("*.safetensors*")):
        if not has_config:
            raise MissingCheckpoint(f"{path} holds safetensors files but no {CONFIG_FILE}; copy the model's there")
        return Location(CheckpointKind.SAFETENSORS, path)
    # a projector for images may lie beside the model; it is not the model
    ggufs = sorted(file for file in path.glob("*.gguf") if not file.name.startswith("mmproj"))
    if len(ggufs) > 1:
        names = ", ".join(file.name for file in ggufs)
        raise UnsupportedCheckpoint(f"{path} holds {len(ggufs)} GGUF files ({names}); name the one to serve")
    if ggufs:
        return Location(CheckpointKind.GGUF, ggufs[0])
    if has_config:
        return Location(CheckpointKind.CONFIG, path)
    raise MissingCheckpoint(f"{path} holds no model: neither a .gguf file nor {CONFIG_FILE} (found: {_listing(path)})")


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Around all reading of a model: what the file system refuses (permissions, a sick volume) names the file."""
    try:
        yield
    except OSError as error:
        raise MissingCheckpoint(
            f"{error.filename or path} cannot be read: {error.strerror}; "
            "check that this user may read it and that its volume is healthy"
        ) from error


def _locate_file(path: Path) -> Location:
    if path.suffix == ".gguf":
        return Location(CheckpointKind.GGUF, path)
    if path.name == CONFIG_FILE:
        return Location(CheckpointKind.CONFIG, path.parent)
    raise UnsupportedCheckpoint(f"{path} is neither a .gguf file nor a model directory")


def _listing(path: Path) -> str:
    names = sorted(file.name for file in path.iterdir())
    return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "") if names else "nothing"
