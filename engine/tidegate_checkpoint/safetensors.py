"""safetensors headers: which tensors lie in which file, without reading a weight.

Called to size a model and to check a download before the engine maps it.
Format: https://github.com/huggingface/safetensors#format (8 bytes of length, JSON, then the data without holes)
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from tidegate_checkpoint.errors import CorruptCheckpoint, MissingCheckpoint, UnsupportedCheckpoint

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
MAX_HEADER_BYTES = 100_000_000  # the reference implementation's own limit
_LENGTH_BYTES = 8
_DTYPE_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1,
}  # fmt: skip


@dataclass(frozen=True)
class StoredTensor:
    """A tensor's entry: `dtype` in lower case, `file` the file it lies in."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    num_bytes: int
    file: Path


def read_safetensors(directory: Path) -> tuple[StoredTensor, ...]:
    """All tensors of a directory, single file or shards with an index. Raises CheckpointError."""
    index = directory / INDEX_FILE
    if index.is_file():
        return _read_shards(directory, _weight_map(index))
    single = directory / SINGLE_FILE
    files = [single] if single.is_file() else sorted(directory.glob("*.safetensors"))
    if len(files) != 1:
        names = ", ".join(file.name for file in files) or "none"
        raise MissingCheckpoint(
            f"{directory} has neither {SINGLE_FILE} nor {INDEX_FILE} (found: {names}); fetch the rest"
        )
    return read_header(files[0])


def read_header(file: Path) -> tuple[StoredTensor, ...]:
    """The tensors of one file, checked to lie inside it. Raises CorruptCheckpoint, UnsupportedCheckpoint."""
    file_bytes = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
        if file_bytes < _LENGTH_BYTES or length > MAX_HEADER_BYTES:
            raise CorruptCheckpoint(f"{file} is not a safetensors file ({file_bytes} bytes, header of {length})")
        text = stream.read(length)
    if len(text) < length:
        raise _cut_short(file, file_bytes, _LENGTH_BYTES + length)
    entries = _json_object(text, file)
    entries.pop("__metadata__", None)
    tensors = tuple(_tensor(file, name, entry) for name, entry in entries.items())
    expected_bytes = _LENGTH_BYTES + length + sum(tensor.num_bytes for tensor in tensors)
    if file_bytes < expected_bytes:
        raise _cut_short(file, file_bytes, expected_bytes)
    if file_bytes > expected_bytes:
        raise CorruptCheckpoint(f"{file} has {file_bytes} bytes, its header describes {expected_bytes}; fetch it again")
    return tensors


def _read_shards(directory: Path, shard_by_tensor: Mapping[str, str]) -> tuple[StoredTensor, ...]:
    shards = sorted(set(shard_by_tensor.values()))
    missing = [shard for shard in shards if not (directory / shard).is_file()]
    if missing:
        listed = ", ".join(missing[:4])
        raise MissingCheckpoint(
            f"{directory} lacks {len(missing)} of {len(shards)} weight files ({listed}); fetch them"
        )
    stored = [tensor for shard in shards for tensor in read_header(directory / shard)]
    absent = shard_by_tensor.keys() - {tensor.name for tensor in stored}
    if absent:
        raise CorruptCheckpoint(
            f"{directory}: {len(absent)} tensors of {INDEX_FILE} are in no file, such as '{min(absent)}'; fetch again"
        )
    return tuple(tensor for tensor in stored if shard_by_tensor.get(tensor.name) == tensor.file.name)


def _weight_map(index: Path) -> Mapping[str, str]:
    weight_map = _json_object(index.read_bytes(), index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CorruptCheckpoint(f"{index} has no 'weight_map'; fetch it again")
    names = {str(tensor): str(shard) for tensor, shard in weight_map.items()}
    if outside := [shard for shard in names.values() if Path(shard).name != shard]:
        raise CorruptCheckpoint(f"{index} names '{outside[0]}', which is not a file beside it")
    return names


def _tensor(file: Path, name: str, entry: object) -> StoredTensor:
    match entry:
        case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [int(start), int(end)]}:
            pass
        case _:
            raise CorruptCheckpoint(f"{file}: the entry of tensor '{name}' is malformed; fetch the file again")
    if dtype not in _DTYPE_BYTES:
        raise UnsupportedCheckpoint(f"{file}: tensor '{name}' has dtype {dtype}, which is not served")
    num_bytes = prod(map(int, shape)) * _DTYPE_BYTES[dtype]
    if end - start != num_bytes:
        raise CorruptCheckpoint(f"{file}: tensor '{name}' spans {end - start} bytes, its shape needs {num_bytes}")
    return StoredTensor(name, tuple(map(int, shape)), dtype.lower(), num_bytes, file)


def _json_object(text: bytes, file: Path) -> dict[str, object]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        raise CorruptCheckpoint(f"{file} does not hold valid JSON where it should ({error}); fetch it again") from error
    if not isinstance(value, dict):
        raise CorruptCheckpoint(f"{file} holds a JSON {type(value).__name__} where an object should be; fetch it again")
    return value


def _cut_short(file: Path, file_bytes: int, expected_bytes: int) -> CorruptCheckpoint:
    return CorruptCheckpoint(f"{file} is cut short: {file_bytes} of {expected_bytes} bytes; fetch it again")
