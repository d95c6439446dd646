"""The facts of a model's config that decide its shape, typed and checked.

Made from a completed config (config_json.py); read by the tensor layout and by the shape.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from tidegate_checkpoint.config_json import SLIDING_ATTENTION, Json
from tidegate_checkpoint.errors import CorruptCheckpoint, UnsupportedCheckpoint
from tidegate_core.shape import AttentionGroup, LayerKind

_DTYPES = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}


@dataclass(frozen=True)
class MlaConfig:
    """DeepSeek's latent attention: what is cached per position is kv_rank + rope_dim values, once for all heads."""

    q_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int


@dataclass(frozen=True)
class ExpertsConfig:
    """Mixture of experts in every layer from `first_layer` on."""

    num_experts: int
    num_shared: int
    intermediate_size: int
    first_layer: int


@dataclass(frozen=True)
class ModelConfig:
    """One text model. `windows` has an entry per layer: the sliding window, or None for full attention."""

    architecture: str
    dtype: str
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    num_attention_heads: int
    num_kv_heads: int
    head_dim: int
    max_context: int
    has_tied_embeddings: bool
    has_qkv_bias: bool
    has_output_bias: bool
    has_mlp_bias: bool
    windows: tuple[int | None, ...]
    mla: MlaConfig | None
    experts: ExpertsConfig | None

    @property
    def num_layers(self) -> int:
        return len(self.windows)

    def attention_groups(self) -> tuple[AttentionGroup, ...]:
        """Layers that keep the same amount per position, counted together."""
        if self.mla is not None:
            latent_dim = self.mla.kv_rank + self.mla.rope_dim
            return (AttentionGroup(LayerKind.MLA, self.num_layers, 1, latent_dim),)
        full_first = sorted(self.windows, key=lambda window: window or 0)
        return tuple(self._group(window, layers) for window, layers in groupby(full_first))

    def _group(self, window: int | None, layers: Iterable[int | None]) -> AttentionGroup:
        kind = LayerKind.FULL if window is None else LayerKind.WINDOW
        return AttentionGroup(kind, len(list(layers)), self.num_kv_heads, self.head_dim, window)


def parse_config(config: Json, source: str) -> ModelConfig:
    """Raises CheckpointError naming the key; `source` names the file in errors."""
    fields = _Fields(config, source)
    architecture = str(config["model_type"])
    has_bias = bool(config["attention_bias"])
    num_heads, num_kv_heads = fields.integer("num_attention_heads"), fields.integer("num_key_value_heads")
    if num_heads % num_kv_heads:
        raise CorruptCheckpoint(
            f"{source}: {num_heads} attention heads cannot share {num_kv_heads} key-value heads evenly; "
            "fetch the config again"
        )
    return ModelConfig(
        architecture=architecture,
        dtype=_dtype(config["dtype"], source),
        hidden_size=fields.integer("hidden_size"),
        intermediate_size=fields.integer("intermediate_size"),
        vocab_size=fields.integer("vocab_size"),
        num_attention_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=fields.integer("head_dim"),
        max_context=fields.integer("max_position_embeddings"),
        has_tied_embeddings=bool(config["tie_word_embeddings"]),
        has_qkv_bias=has_bias or architecture == "qwen2",
        has_output_bias=has_bias,
        has_mlp_bias=bool(config["mlp_bias"]),
        windows=_windows(config, fields),
        mla=_mla(fields) if architecture.startswith("deepseek") else None,
        experts=_experts(architecture, fields),
    )


@dataclass(frozen=True)
class _Fields:
    config: Json
    source: str

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.config.get(key, default)
        if not isinstance(value, int) or value < 1:
            found = "missing" if value is None else f"{value!r}, not a positive integer"
            raise CorruptCheckpoint(f"{self.source}: {key} is {found}; fetch the config again")
        return value

    def optional(self, key: str) -> int | None:
        return None if self.config.get(key) is None else self.integer(key)


def _dtype(value: object, source: str) -> str:
    name = str(value).removeprefix("torch.")
    if name not in _DTYPES:
        raise UnsupportedCheckpoint(f"{source}: dtype '{value}' is not served; served are {', '.join(_DTYPES)}")
    return _DTYPES[name]


def _windows(config: Json, fields: _Fields) -> tuple[int | None, ...]:
    kinds = config["layer_types"]
    assert isinstance(kinds, list)
    return tuple(fields.integer("sliding_window") if kind == SLIDING_ATTENTION else None for kind in kinds)


def _mla(fields: _Fields) -> MlaConfig:
    return MlaConfig(
        q_rank=fields.optional("q_lora_rank"),
        kv_rank=fields.integer("kv_lora_rank"),
        nope_dim=fields.integer("qk_nope_head_dim"),
        rope_dim=fields.integer("qk_rope_head_dim"),
        v_dim=fields.integer("v_head_dim"),
    )


def _experts(architecture: str, fields: _Fields) -> ExpertsConfig | None:
    if architecture == "mixtral":
        return ExpertsConfig(fields.integer("num_local_experts"), 0, fields.integer("intermediate_size"), 0)
    if not architecture.startswith("deepseek") or fields.optional("n_routed_experts") is None:
        return None
    first = fields.config.get("first_k_dense_replace", 0)
    return ExpertsConfig(
        num_experts=fields.integer("n_routed_experts"),
        num_shared=fields.optional("n_shared_experts") or 0,
        intermediate_size=fields.integer("moe_intermediate_size"),
        first_layer=first if isinstance(first, int) else 0,
    )
