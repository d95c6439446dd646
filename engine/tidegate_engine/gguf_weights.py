"""GGUF tensors decoded to torch, under Hugging Face's names and in its layout.

llama.cpp stores some tensors changed: query and key rows of llama models are permuted for its rotary kernel, and
Gemma's norms hold 1 + w where the reference model computes (1 + w) itself. Both are undone here.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from math import gcd

import numpy as np
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from tidegate_checkpoint.config_json import Json
from tidegate_checkpoint.errors import CorruptCheckpoint, UnsupportedCheckpoint
from tidegate_checkpoint.gguf import GgufFile, GgufTensor
from tidegate_checkpoint.tensor_names import name_from_gguf

# Decoding works in pieces that fit the second-level cache, on threads, since numpy and torch release the GIL. Within a
# piece the decoder takes 16 rows at a time, so rows of this length keep its Python share small. Measured on 268M
# parameters, 2 cores: 1.0 s against 1.4 s on one thread and 3.4 s with the file's own rows.
PIECE_ELEMENTS = 1 << 20
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

    def tensor(self, name: str, dtype: torch.dtype | None = None) -> torch.Tensor:
        return self._as_trained(name, self._decode(self._stored(name), dtype or torch.float32))

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

    def _decode(self, stored: GgufTensor, dtype: torch.dtype) -> torch.Tensor:
        decoded = torch.empty(stored.num_elements, dtype=dtype)
        raw = self._raw(stored)
        pieces = list(_pieces(stored))
        with ThreadPoolExecutor(min(torch.get_num_threads(), len(pieces))) as pool:
            for done in [pool.submit(_decode_piece, stored, raw, piece, decoded) for piece in pieces]:
                done.result()
        return decoded.view(stored.shape)

    def _as_trained(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        if self._architecture == "gemma3" and name.endswith("norm.weight"):
            return tensor - 1
        if self._architecture == "llama" and ".self_attn.q_proj." in name:
            return _unpermuted(tensor, self.config["num_attention_heads"])
        if self._architecture == "llama" and ".self_attn.k_proj." in name:
            return _unpermuted(tensor, self.config["num_key_value_heads"])
        return tensor


def _pieces(stored: GgufTensor) -> Iterator[slice]:
    for start in range(0, stored.num_elements, PIECE_ELEMENTS):
        yield slice(start, min(start + PIECE_ELEMENTS, stored.num_elements))


def _decode_piece(stored: GgufTensor, raw: np.ndarray, piece: slice, decoded: torch.Tensor) -> None:
    block_elements, block_bytes = stored.type.block_elements, stored.type.block_bytes
    num_blocks = (piece.stop - piece.start) // block_elements
    row_blocks = gcd(num_blocks, ROW_ELEMENTS // block_elements)
    first = piece.start // block_elements
    blocks = raw[first * block_bytes : (first + num_blocks) * block_bytes].reshape(-1, row_blocks * block_bytes)
    try:
        values = dequantize(blocks, GGMLQuantizationType(stored.type.number))
    except (NotImplementedError, ValueError) as error:
        raise UnsupportedCheckpoint(f"tensor '{stored.name}' is stored as {stored.type.name}: no decoder") from error
    # torch would start a second team of threads inside this one for anything longer than its grain
    sources = torch.split(torch.from_numpy(values.reshape(-1)), GRAIN_ELEMENTS)
    for target, source in zip(torch.split(decoded[piece], GRAIN_ELEMENTS), sources, strict=True):
        target.copy_(source)


def _unpermuted(tensor: torch.Tensor, num_heads: object) -> torch.Tensor:
    """Rows from llama.cpp's order (rotary pairs adjacent) to Hugging Face's (halves), within each head."""
    assert isinstance(num_heads, int)
    half = tensor.shape[0] // num_heads // 2
    return tensor.view(num_heads, half, 2, -1).transpose(1, 2).reshape(tensor.shape)
