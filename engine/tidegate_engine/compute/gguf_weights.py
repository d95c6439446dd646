"""GGUF tensors decoded to torch, under Hugging Face's names and in its layout.

llama.cpp stores some tensors changed: query and key rows of llama models are permuted for its rotary kernel, and
Gemma's norms hold 1 + w where the reference model computes (1 + w) itself. Both are undone here.
"""

from collections.abc import Callable
from math import gcd

import numpy as np
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from tidegate_checkpoint.config_json import Json
from tidegate_checkpoint.errors import CorruptCheckpoint, UnsupportedCheckpoint
from tidegate_checkpoint.gguf import GgufFile, GgufTensor
from tidegate_checkpoint.tensor_names import name_from_gguf

# Decoding works in pieces that fit the second-level cache and whose memory the allocator does not give back in between.
# Within a piece the decoder takes 16 rows at a time, so rows of this length keep its Python share small, and threads
# that read at once do not wait for each other: numpy and torch release the GIL. Measured on 268M parameters: 1.1 s of
# CPU time, 2.7 s with pieces of four times the size.
PIECE_ELEMENTS = 1 << 17
ROW_ELEMENTS = 1 << 14
GRAIN_ELEMENTS = 1 << 15


class GgufWeights:
    """Tensors of one GGUF file, decoded when asked for."""

    def __init__(self, file: GgufFile, config: Json) -> None:
        self.config = config
        self._file = file
        self._architecture = file.architecture
        named = {name_from_gguf(tensor.name, self._architecture): tensor for tensor in file.tensors}
        self._tensors = {name: tensor for name, tensor in named.items() if name is not None}
        # Copy-on-write, so that torch may wrap it; nothing is written, the pages stay the file's.
        self._bytes = np.memmap(file.path, dtype=np.uint8, mode="c")

    def names(self) -> tuple[str, ...]:
        return tuple(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._stored(name).shape

    def read_rows(self, name: str, start: int, into: torch.Tensor, columns: slice | None = None) -> None:
        stored, num_heads = self._stored(name), self._permuted_heads(name)
        if columns is not None:
            self._read_columns(name, start, into, columns)
            return
        if num_heads is None:
            self._decode(stored, start, into)
            return
        head_rows, stop = stored.shape[0] // num_heads, start + into.shape[0]
        for first in range(start - start % head_rows, stop, head_rows):  # a head at a time takes little memory
            head = torch.empty(head_rows, *stored.shape[1:], dtype=into.dtype)
            self._decode(stored, first, head)
            low, high = max(start, first), min(stop, first + head_rows)
            into[low - start : high - start] = _unpermuted(head)[low - first : high - first]

    def _read_columns(self, name: str, start: int, into: torch.Tensor, columns: slice) -> None:
        """A few whole rows at a time take little memory: blocks are decoded whole."""
        width = self.shape(name)[1]
        num_rows = max(1, PIECE_ELEMENTS // width)
        for first in range(0, into.shape[0], num_rows):
            target = into[first : first + num_rows]
            whole = torch.empty(target.shape[0], width, dtype=into.dtype)
            self.read_rows(name, start + first, whole)
            target.copy_(whole[:, columns])

    def tensor(self, name: str, dtype: torch.dtype | None = None) -> torch.Tensor:
        whole = torch.empty(self.shape(name), dtype=dtype or torch.float32)
        self.read_rows(name, 0, whole)
        return whole - 1 if self._architecture == "gemma3" and name.endswith("norm.weight") else whole

    def lookup(self, name: str) -> Callable[[torch.Tensor], torch.Tensor]:
        stored = self._stored(name)
        rows = self._raw(stored).reshape(stored.shape[0], -1)
        kind = GGMLQuantizationType(stored.type.number)
        return lambda ids: torch.from_numpy(dequantize(rows[ids.numpy()], kind)).float()

    def _stored(self, name: str) -> GgufTensor:
        stored = self._tensors.get(name)
        if stored is None:
            raise CorruptCheckpoint(f"{self._file.path} has no tensor '{name}'; fetch it again")
        return stored

    def _raw(self, stored: GgufTensor) -> np.ndarray:
        return self._bytes[stored.offset_bytes : stored.offset_bytes + stored.num_bytes]

    def _decode(self, stored: GgufTensor, start: int, into: torch.Tensor) -> None:
        """A stretch along the first dimension."""
        first = start * (stored.num_elements // stored.shape[0])
        raw, flat = self._raw(stored), into.view(-1)
        for at in range(0, flat.numel(), PIECE_ELEMENTS):
            _decode_piece(stored, raw, first + at, flat[at : at + PIECE_ELEMENTS])

    def _permuted_heads(self, name: str) -> int | None:
        """Heads of a tensor whose rows the file has in another order; None for all others."""
        for projection, heads in (("q_proj", "num_attention_heads"), ("k_proj", "num_key_value_heads")):
            if self._architecture == "llama" and f".self_attn.{projection}." in name:
                num_heads = self.config[heads]
                assert isinstance(num_heads, int)
                return num_heads
        return None


def _decode_piece(stored: GgufTensor, raw: np.ndarray, start: int, into: torch.Tensor) -> None:
    block_elements, block_bytes = stored.type.block_elements, stored.type.block_bytes
    num_blocks = into.numel() // block_elements
    row_blocks = gcd(num_blocks, ROW_ELEMENTS // block_elements)
    first = start // block_elements
    blocks = raw[first * block_bytes : (first + num_blocks) * block_bytes].reshape(-1, row_blocks * block_bytes)
    try:
        values = dequantize(blocks, GGMLQuantizationType(stored.type.number))
    except (NotImplementedError, ValueError) as error:
        raise UnsupportedCheckpoint(f"tensor '{stored.name}' is stored as {stored.type.name}: no decoder") from error
    # torch would start a second team of threads inside this one for anything longer than its grain
    sources = torch.split(torch.from_numpy(values.reshape(-1)), GRAIN_ELEMENTS)
    for target, source in zip(torch.split(into, GRAIN_ELEMENTS), sources, strict=True):
        target.copy_(source)


def _unpermuted(head: torch.Tensor) -> torch.Tensor:
    """A head's rows from llama.cpp's order (rotary pairs adjacent) to Hugging Face's (halves)."""
    return head.view(head.shape[0] // 2, 2, -1).transpose(0, 1).reshape(head.shape)
