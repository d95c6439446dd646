"""A model's files -> ModelShape: the one way the CLI, the inspection Job and the engine learn what a model is.

Reads headers only: a few milliseconds for safetensors, a fraction of a second for a GGUF file with a large vocabulary.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from math import prod
from pathlib import Path

from tidegate_checkpoint.config import ModelConfig, parse_config
from tidegate_checkpoint.config_json import Json, read_config
from tidegate_checkpoint.errors import CorruptCheckpoint
from tidegate_checkpoint.gguf import GgufFile, read_gguf
from tidegate_checkpoint.gguf_config import gguf_config
from tidegate_checkpoint.layout import model_tensors
from tidegate_checkpoint.location import CONFIG_FILE, CheckpointKind, Location, locate, reading
from tidegate_checkpoint.safetensors import read_safetensors
from tidegate_checkpoint.tensor_names import EMBEDDING, HEAD, name_from_gguf, text_name
from tidegate_core.shape import ModelShape, TpRule, WeightGroup, WeightRole

_CONFIG_DTYPE_BYTES = {"bf16": 2, "f16": 2, "f32": 4}
# Tensor parallelism splits matrices and the biases of matrices split by rows; routers, latent projections (shared by
# all heads), norms and the biases of matrices split by columns stay whole on every device.
_REPLICATED = re.compile(r"norm\.weight$|\.gate\.(weight|e_score_correction_bias)$|_a_proj|\.(o_proj|down_proj)\.bias$")


@dataclass(frozen=True)
class _Entry:
    name: str
    shape: tuple[int, ...]
    dtype: str
    num_bytes: int

    @property
    def group(self) -> tuple[WeightRole, TpRule, str, int]:
        """The last is the width, 0 for vectors."""
        rule = TpRule.REPLICATED if _REPLICATED.search(self.name) else TpRule.SPLIT
        return _role(self), rule, self.dtype, self.shape[-1] if len(self.shape) > 1 else 0


def read_shape(path: Path) -> ModelShape:
    """Of a model directory, a directory with one GGUF file, a GGUF file, or a config.json. Raises CheckpointError."""
    with reading(path):
        location = locate(path)
        if location.kind is CheckpointKind.GGUF:
            return _gguf_shape(read_gguf(location.path))
        config_json = read_config(location.path)
        config = parse_config(config_json, str(location.path / CONFIG_FILE))
        return _shape(config_json, config, _entries(location, config))


def _entries(location: Location, config: ModelConfig) -> list[_Entry]:
    if location.kind is CheckpointKind.CONFIG:
        size = _CONFIG_DTYPE_BYTES[config.dtype]
        return [
            _Entry(tensor.name, tensor.shape, config.dtype, tensor.num_elements * size)
            for tensor in model_tensors(config)
        ]
    entries = [
        _Entry(name, tensor.shape, tensor.dtype, tensor.num_bytes)
        for tensor in read_safetensors(location.path)
        if (name := text_name(tensor.name, config.num_layers)) is not None
    ]
    return _checked(entries, config, str(location.path))


def _gguf_shape(file: GgufFile) -> ModelShape:
    config_json = gguf_config(file)
    config = parse_config(config_json, str(file.path))
    entries = [
        _Entry(name, tensor.shape, tensor.type.name, tensor.num_bytes)
        for tensor in file.tensors
        if (name := name_from_gguf(tensor.name, file.architecture)) is not None
    ]
    return _shape(config_json, config, _checked(entries, config, str(file.path)))


def _checked(entries: list[_Entry], config: ModelConfig, source: str) -> list[_Entry]:
    """The model's own tensors, a tied head left out; raises when one is missing or has another shape."""
    stored = {entry.name: entry for entry in entries if not (config.has_tied_embeddings and entry.name == HEAD)}
    for tensor in model_tensors(config):
        entry = stored.get(tensor.name)
        if entry is None:
            raise CorruptCheckpoint(
                f"{source} has no tensor '{tensor.name}', which its config calls for; fetch it again"
            )
        if entry.shape != tensor.shape:
            raise CorruptCheckpoint(
                f"{source}: tensor '{tensor.name}' has shape {entry.shape}, its config calls for {tensor.shape}"
            )
    return list(stored.values())


def _shape(config_json: Json, config: ModelConfig, entries: list[_Entry]) -> ModelShape:
    return ModelShape(
        architecture=config.architecture,
        num_parameters=sum(prod(entry.shape) for entry in entries),
        dtype=config.dtype,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        vocab_size=config.vocab_size,
        num_attention_heads=config.num_attention_heads,
        max_context=config.max_context,
        attention=config.attention_groups(),
        weights=_weight_groups(entries),
        has_tied_embeddings=config.has_tied_embeddings,
        fingerprint=_fingerprint(config_json, entries),
    )


def _weight_groups(entries: Iterable[_Entry]) -> tuple[WeightGroup, ...]:
    sums: dict[tuple[WeightRole, TpRule, str, int], tuple[int, int]] = {}
    for entry in entries:
        group = entry.group
        num_elements, num_bytes = sums.get(group, (0, 0))
        sums[group] = num_elements + prod(entry.shape), num_bytes + entry.num_bytes
    return tuple(
        WeightGroup(role, rule, dtype, *sums[role, rule, dtype, width], width or None)
        for role, rule, dtype, width in sorted(sums)
    )


def _role(entry: _Entry) -> WeightRole:
    if entry.name == EMBEDDING:
        return WeightRole.EMBEDDING
    if entry.name == HEAD:
        return WeightRole.HEAD
    return WeightRole.NORM if len(entry.shape) == 1 else WeightRole.LINEAR


def _fingerprint(config_json: Json, entries: Iterable[_Entry]) -> str:
    """Of what the files say, not of the weights: hashing those would read the whole model."""
    index = sorted((entry.name, entry.dtype, entry.shape) for entry in entries)
    return sha256(json.dumps([config_json, index], sort_keys=True).encode()).hexdigest()[:32]
