"""Checkpoint files for tests, made byte by byte: a GGUF and a safetensors writer that can also write nonsense."""

import json
import struct
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path

GGUF_ALIGNMENT = 32
GgufTensorSpec = tuple[str, tuple[int, ...], int, int]  # name, row-major shape, storage type, bytes

TINY_LLAMA: dict[str, object] = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 48,
    "max_position_embeddings": 256,
    "torch_dtype": "bfloat16",
}


def gguf_bytes(
    metadata: Mapping[str, object],
    tensors: Sequence[GgufTensorSpec] = (),
    *,
    version: int = 3,
    data: bytes | None = None,
) -> bytes:
    """A whole file; the tensors' data is zeros unless given. int is written as uint32, float as float32."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    head += b"".join(_text(key) + _value(value) for key, value in metadata.items())
    offset = 0
    for name, shape, kind, num_bytes in tensors:
        dimensions = shape[::-1]
        head += _text(name) + struct.pack(f"<I{len(dimensions)}QIQ", len(dimensions), *dimensions, kind, offset)
        offset += -(-num_bytes // GGUF_ALIGNMENT) * GGUF_ALIGNMENT
    padding = b"\0" * (-len(head) % GGUF_ALIGNMENT)
    return head + padding + (bytes(offset) if data is None else data)


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _value(value: object) -> bytes:
    match value:
        case bool():
            return struct.pack("<I?", 7, value)
        case int():
            return struct.pack("<II", 4, value)
        case float():
            return struct.pack("<If", 6, value)
        case str():
            return struct.pack("<I", 8) + _text(value)
        case [str(), *_] as texts:
            return struct.pack("<IIQ", 9, 8, len(texts)) + b"".join(_text(str(text)) for text in texts)
        case [float(), *_] as numbers:
            return struct.pack(f"<IIQ{len(numbers)}f", 9, 6, len(numbers), *numbers)
        case [*numbers]:
            return struct.pack(f"<IIQ{len(numbers)}i", 9, 5, len(numbers), *numbers)
    raise TypeError(f"no GGUF form for {value!r}")


def tiny_gguf(architecture: str = "llama") -> bytes:
    """A one-layer model of zeros in float32, hidden size 32."""
    metadata = {
        "general.architecture": architecture,
        f"{architecture}.embedding_length": 32,
        f"{architecture}.feed_forward_length": 64,
        f"{architecture}.block_count": 1,
        f"{architecture}.attention.head_count": 4,
        f"{architecture}.attention.head_count_kv": 2,
        f"{architecture}.attention.layer_norm_rms_epsilon": 1e-6,
        f"{architecture}.context_length": 256,
    }
    shapes = {
        "token_embd.weight": (48, 32),
        "blk.0.attn_norm.weight": (32,),
        "blk.0.attn_q.weight": (32, 32),
        "blk.0.attn_k.weight": (16, 32),
        "blk.0.attn_v.weight": (16, 32),
        "blk.0.attn_output.weight": (32, 32),
        "blk.0.ffn_norm.weight": (32,),
        "blk.0.ffn_gate.weight": (64, 32),
        "blk.0.ffn_up.weight": (64, 32),
        "blk.0.ffn_down.weight": (32, 64),
        "output_norm.weight": (32,),
    }
    return gguf_bytes(metadata, [(name, shape, 0, 4 * prod(shape)) for name, shape in shapes.items()])


def safetensors_bytes(shapes: Mapping[str, tuple[int, ...]], *, dtype: str = "BF16", size: int = 2) -> bytes:
    """Zeros of one dtype."""
    entries, offset = {}, 0
    for name, shape in shapes.items():
        end = offset + prod(shape) * size
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    header = json.dumps({"__metadata__": {"format": "pt"}, **entries}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(offset)


def write_config(directory: Path, config: Mapping[str, object]) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    return directory
