"""Repositories of tiny models for the stand-in: safetensors in two shards, GGUF, and beside them what nobody needs."""

import json
from pathlib import Path
from typing import Any

from checkpoint_files import TINY_LLAMA, safetensors_bytes, tiny_gguf, write_config
from tidegate_checkpoint.config import parse_config
from tidegate_checkpoint.config_json import complete
from tidegate_checkpoint.layout import model_tensors

from .repository import Repository

NEEDED = (
    "config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
    "model.safetensors.index.json", "tokenizer.json", "tokenizer_config.json",
)  # fmt: skip


def tiny_llama(root: Path, name: str = "tiny/llama", **rules: Any) -> Repository:
    """Large enough that its weights lie in large file storage."""
    directory = write_config(root / name, TINY_LLAMA | {"hidden_size": 128, "intermediate_size": 256})
    config = parse_config(complete(json.loads((directory / "config.json").read_text()), "config.json"), "config.json")
    shapes = {tensor.name: tensor.shape for tensor in model_tensors(config)}
    names = list(shapes)
    shards = dict(zip(NEEDED[1:3], (names[:10], names[10:]), strict=True))
    for file, held in shards.items():
        (directory / file).write_bytes(safetensors_bytes({tensor: shapes[tensor] for tensor in held}))
    weight_map = {tensor: file for file, held in shards.items() for tensor in held}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (directory / file).write_text("{}")
    (directory / "README.md").write_text("# a model")
    (directory / "pytorch_model.bin").write_bytes(bytes(1_000_000))
    return Repository(name, directory, **rules)


def tiny_ggufs(root: Path, *files: str, name: str = "tiny/gguf") -> Repository:
    """The same model under each of the names."""
    directory = root / name
    for file in files:
        (directory / file).parent.mkdir(parents=True, exist_ok=True)
        (directory / file).write_bytes(tiny_gguf())
    (directory / "mmproj-tiny.gguf").write_bytes(tiny_gguf())
    return Repository(name, directory)
