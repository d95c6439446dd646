"""GGUF, llama.cpp's single-file format: metadata and tensor index, not the weights themselves.

Called to size a model, to build its tokenizer and to find its tensors. Arrays are walked over and left in the file
until someone asks for them: a vocabulary of 262,144 strings costs its reader a fraction of a second, others nothing.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import mmap
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from pathlib import Path
from struct import Struct
from typing import NoReturn, TypeAlias

from tidegate_checkpoint.errors import CorruptCheckpoint, MissingCheckpoint, UnsupportedCheckpoint
from tidegate_checkpoint.gguf_types import TENSOR_TYPES, TensorType

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_U32, _U64 = Struct("<I"), Struct("<Q")


@dataclass(frozen=True)
class GgufArray:
    """An array's place in the file: `length` elements of value type `kind`."""

    kind: int
    length: int
    start: int
    end: int


Value: TypeAlias = int | float | bool | str | GgufArray


@dataclass(frozen=True)
class GgufTensor:
    """One tensor's place: `shape` is row-major (the file's is reversed), `offset_bytes` is from the file's start."""

    name: str
    shape: tuple[int, ...]
    type: TensorType
    offset_bytes: int

    @property
    def num_elements(self) -> int:
        return prod(self.shape)

    @property
    def num_bytes(self) -> int:
        return self.num_elements // self.type.block_elements * self.type.block_bytes


@dataclass(frozen=True)
class GgufFile:
    """Metadata by typed accessors that name the file and the key when they fail, and the tensor index."""

    path: Path
    metadata: Mapping[str, Value] = field(repr=False)
    tensors: tuple[GgufTensor, ...] = field(repr=False)

    @property
    def architecture(self) -> str:
        return self.text("general.architecture")

    @cached_property
    def tensor_by_name(self) -> Mapping[str, GgufTensor]:
        return {tensor.name: tensor for tensor in self.tensors}

    def text(self, key: str, default: str | None = None) -> str:
        value = self._get(key, default)
        return value if isinstance(value, str) else self._reject(key, value, "text")

    def integer(self, key: str, default: int | None = None) -> int:
        value = self._get(key, default)
        return value if isinstance(value, int) else self._reject(key, value, "an integer")

    def real(self, key: str, default: float | None = None) -> float:
        value = self._get(key, default)
        return float(value) if isinstance(value, int | float) else self._reject(key, value, "a number")

    def strings(self, key: str) -> list[str]:
        array = self._get(key, None)
        if not isinstance(array, GgufArray) or array.kind != _STRING:
            self._reject(key, array, "a list of strings")
        parts = _split_strings(self._read(array), array.length)
        try:
            return list(map(bytes.decode, parts))
        except UnicodeDecodeError as error:
            raise CorruptCheckpoint(f"{self.path}: GGUF metadata '{key}' is not UTF-8; fetch it again") from error

    def numbers(self, key: str) -> list[float]:
        array = self._get(key, None)
        if not isinstance(array, GgufArray) or array.kind == _STRING:
            self._reject(key, array, "a list of numbers")
        return list(Struct(f"<{array.length}{_SCALARS[array.kind]}").unpack(self._read(array)))

    def _read(self, array: GgufArray) -> bytes:
        with self.path.open("rb") as file:
            file.seek(array.start)
            return file.read(array.end - array.start)

    def _get(self, key: str, default: Value | None) -> Value:
        value = self.metadata.get(key, default)
        if value is None:
            raise CorruptCheckpoint(f"{self.path}: GGUF metadata has no '{key}'; convert the model again")
        return value

    def _reject(self, key: str, value: Value, wanted: str) -> NoReturn:
        kind = "an array" if isinstance(value, GgufArray) else type(value).__name__
        raise CorruptCheckpoint(f"{self.path}: GGUF metadata '{key}' is {kind}, not {wanted}; convert the model again")


def read_gguf(path: Path) -> GgufFile:
    """Metadata and tensor index of one file. Raises CheckpointError."""
    try:
        with path.open("rb") as file:
            num_bytes = file.seek(0, 2)
            if num_bytes == 0:
                raise CorruptCheckpoint(f"{path} is empty; fetch it again")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
                return _Parser(path, view, num_bytes).file()
    except FileNotFoundError as error:
        raise MissingCheckpoint(f"{path} does not exist") from error
    except OSError as error:
        raise MissingCheckpoint(f"{path} cannot be read: {error}") from error


def _split_strings(data: bytes, length: int) -> list[bytes]:
    """Strings that were walked over before, so their lengths are known to fit."""
    read_length, at = _U64.unpack_from, 0
    parts: list[bytes] = []
    for _ in range(length):
        start = at + _U64.size
        at = start + read_length(data, at)[0]
        parts.append(data[start:at])
    return parts


class _Parser:
    """One pass over a file's head; `at` is the cursor, `reading` says in errors where it stands."""

    def __init__(self, path: Path, view: mmap.mmap, num_bytes: int) -> None:
        self.path = path
        self.view = view
        self.num_bytes = num_bytes
        self.at = 0
        self.reading = "the header"

    def file(self) -> GgufFile:
        num_tensors, num_keys = self._header()
        metadata = dict(self._pair(index, num_keys) for index in range(num_keys))
        placed = [self._tensor(index, num_tensors) for index in range(num_tensors)]
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise self._corrupt(f"general.alignment is {alignment!r}")
        data_start = -(-self.at // alignment) * alignment
        return GgufFile(self.path, metadata, tuple(self._inside(tensor, data_start) for tensor in placed))

    def _header(self) -> tuple[int, int]:
        if (magic := self.view[:4]) != MAGIC:
            raise CorruptCheckpoint(f"{self.path} is not a GGUF file: it begins with {magic!r}, not {MAGIC!r}")
        self.at = len(MAGIC)
        version = self._u32()
        if version not in VERSIONS:
            kind = "big-endian" if version >= 1 << 24 else f"version {version}"
            raise UnsupportedCheckpoint(
                f"{self.path} is a {kind} GGUF file; little-endian files of version 2 and 3 are read: convert the model"
            )
        return self._u64(), self._u64()

    def _pair(self, index: int, num_keys: int) -> tuple[str, Value]:
        self.reading = f"metadata key {index + 1} of {num_keys}"
        key = self._string()
        self.reading = f"metadata '{key}'"
        return key, self._value(self._u32())

    def _value(self, kind: int) -> Value:
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            scalar = self._scalar(kind)
            value: int | float | bool = scalar.unpack_from(self.view, self._advance(scalar.size))[0]
            return value
        element, length = self._u32(), self._u64()
        start = self.at
        if element == _STRING:
            self._skip_strings(length)
        else:
            self._advance(length * self._scalar(element).size)
        return GgufArray(element, length, start, self.at)

    def _scalar(self, kind: int) -> Struct:
        if kind not in _SCALARS:
            raise self._corrupt(f"unknown value type {kind}")
        return Struct(f"<{_SCALARS[kind]}")

    def _skip_strings(self, length: int) -> None:
        # The hot loop, on locals: each string's length says where the next one begins.
        self._require(self.at + length * _U64.size)
        view, at, read_length = self.view, self.at, _U64.unpack_from
        last = self.num_bytes - _U64.size
        for _ in range(length):
            if at > last:
                self._require(at + _U64.size)
            at += _U64.size + read_length(view, at)[0]
        self._require(at)
        self.at = at

    def _tensor(self, index: int, num_tensors: int) -> GgufTensor:
        self.reading = f"tensor entry {index + 1} of {num_tensors}"
        name = self._string()
        self.reading = f"the entry of tensor '{name}'"
        num_dimensions = self._u32()
        if num_dimensions > MAX_DIMENSIONS:
            raise self._corrupt(f"{num_dimensions} dimensions")
        dimensions = tuple(self._u64() for _ in range(num_dimensions))
        number, offset_bytes = self._u32(), self._u64()
        kind = TENSOR_TYPES.get(number)
        if kind is None:
            raise UnsupportedCheckpoint(
                f"{self.path}: tensor '{name}' has storage type {number}, which is not known here"
            )
        if dimensions and dimensions[0] % kind.block_elements:
            raise self._corrupt(f"rows of {dimensions[0]}, not a multiple of {kind.name}'s {kind.block_elements}")
        return GgufTensor(name, dimensions[::-1], kind, offset_bytes)

    def _inside(self, tensor: GgufTensor, data_start: int) -> GgufTensor:
        placed = GgufTensor(tensor.name, tensor.shape, tensor.type, data_start + tensor.offset_bytes)
        self.reading = f"the data of tensor '{tensor.name}'"
        self._require(placed.offset_bytes + placed.num_bytes)
        return placed

    def _u32(self) -> int:
        return int(_U32.unpack_from(self.view, self._advance(_U32.size))[0])

    def _u64(self) -> int:
        return int(_U64.unpack_from(self.view, self._advance(_U64.size))[0])

    def _string(self) -> str:
        length = self._u64()
        start = self._advance(length)
        return self._decoded(self.view[start : start + length])

    def _decoded(self, part: bytes) -> str:
        try:
            return part.decode()
        except UnicodeDecodeError as error:
            raise self._corrupt(f"a string that is not UTF-8: {part[:40]!r}") from error

    def _advance(self, num_bytes: int) -> int:
        start = self.at
        self._require(start + num_bytes)
        self.at = start + num_bytes
        return start

    def _require(self, end: int) -> None:
        if end > self.num_bytes:
            raise CorruptCheckpoint(
                f"{self.path} is cut short: it has {self.num_bytes} bytes, {self.reading} reaches to byte {end};"
                " fetch it again"
            )

    def _corrupt(self, fault: str) -> CorruptCheckpoint:
        return CorruptCheckpoint(f"{self.path} is corrupt: {self.reading} has {fault} (byte {self.at}); fetch it again")
