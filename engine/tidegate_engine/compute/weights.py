"""A checkpoint's tensors by Hugging Face names, whatever the file: all that model code needs to know of formats.

Called once at start by the torch runner. Safetensors are mapped from the page cache, GGUF is decoded (gguf_weights.py).
"""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import torch
import torch.nn.functional as F
from safetensors import safe_open

from tidegate_checkpoint.config_json import Json, read_config
from tidegate_checkpoint.errors import CorruptCheckpoint, MissingCheckpoint, UnsupportedCheckpoint
from tidegate_checkpoint.gguf import read_gguf
from tidegate_checkpoint.gguf_config import gguf_config
from tidegate_checkpoint.location import CheckpointKind, locate
from tidegate_checkpoint.safetensors import StoredTensor, read_safetensors
from tidegate_checkpoint.tensor_names import HEAD, text_name

Lookup = Callable[[torch.Tensor], torch.Tensor]


class Weights(Protocol):
    """`config` is the text model's completed config.json, also for GGUF."""

    @property
    def config(self) -> Json: ...

    def names(self) -> tuple[str, ...]:
        """Of the text model only; a tied head does not appear."""
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """Raises CorruptCheckpoint if there is no such tensor."""
        ...

    def read_rows(self, name: str, start: int, into: torch.Tensor, columns: slice | None = None) -> None:
        """As many rows as `into` has, in its dtype; the others are not decoded. Of all columns, unless some are named.

        Raises CorruptCheckpoint if absent.
        """
        ...

    def tensor(self, name: str, dtype: torch.dtype | None = None) -> torch.Tensor:
        """In the stored dtype (float32 for GGUF) unless another is asked for. Raises CorruptCheckpoint if absent."""
        ...

    def lookup(self, name: str) -> Lookup:
        """Rows of a matrix by int64 ids, fp32, read from the mapped file each time: takes no memory of its own."""
        ...


def open_weights(path: Path) -> Weights:
    """Headers are read and checked, weights only when asked for. Raises CheckpointError."""
    location = locate(path)
    if location.kind is CheckpointKind.CONFIG:
        raise MissingCheckpoint(
            f"{path} holds a config but no weights; put the model's .safetensors or .gguf file there"
        )
    if location.kind is CheckpointKind.GGUF:
        return _open_gguf(location.path)
    return SafetensorsWeights(read_config(location.path), read_safetensors(location.path))


def _open_gguf(path: Path) -> Weights:
    try:
        from tidegate_engine.compute.gguf_weights import GgufWeights
    except ModuleNotFoundError as error:
        raise UnsupportedCheckpoint(f"{path} needs the decoders of 'gguf': install tidegate[gguf]") from error
    file = read_gguf(path)
    return GgufWeights(file, gguf_config(file))


class SafetensorsWeights:
    """Tensors of a model directory; a tensor asked for in its stored dtype stays a view of the mapped file."""

    def __init__(self, config: Json, stored: tuple[StoredTensor, ...]) -> None:
        self.config = config
        num_layers = config["num_hidden_layers"]
        assert isinstance(num_layers, int)
        named = {text_name(tensor.name, num_layers): tensor for tensor in stored}
        self._stored = {name: tensor for name, tensor in named.items() if name is not None}
        if config["tie_word_embeddings"]:
            self._stored.pop(HEAD, None)

    def names(self) -> tuple[str, ...]:
        return tuple(self._stored)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._mapped(name).shape)

    def read_rows(self, name: str, start: int, into: torch.Tensor, columns: slice | None = None) -> None:
        rows = self._mapped(name)[start : start + into.shape[0]]
        into.copy_(rows if columns is None else rows[:, columns])

    def tensor(self, name: str, dtype: torch.dtype | None = None) -> torch.Tensor:
        mapped = self._mapped(name)
        return mapped if dtype is None else mapped.to(dtype)

    def lookup(self, name: str) -> Lookup:
        mapped = self._mapped(name)
        return lambda ids: F.embedding(ids, mapped).float()

    def _mapped(self, name: str) -> torch.Tensor:
        entry = self._stored.get(name)
        if entry is None:
            raise CorruptCheckpoint(f"the checkpoint has no tensor '{name}'; fetch it again")
        with safe_open(entry.file, framework="pt") as file:
            tensor: torch.Tensor = file.get_tensor(entry.name)
        return tensor
