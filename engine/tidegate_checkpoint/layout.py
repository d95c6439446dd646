"""The tensors a text model has, computed from its config: names, shapes, nothing stored.

Sizes a model of which only config.json is at hand, and says which tensor a download lacks.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from tidegate_checkpoint.config import MlaConfig, ModelConfig
from tidegate_checkpoint.tensor_names import EMBEDDING, HEAD

Entry = tuple[str, tuple[int, ...]]


@dataclass(frozen=True)
class TensorSpec:
    """A tensor by its Hugging Face name."""

    name: str
    shape: tuple[int, ...]

    @property
    def num_elements(self) -> int:
        return prod(self.shape)


def model_tensors(config: ModelConfig) -> Iterator[TensorSpec]:
    """Every tensor of the model; a tied head is the embedding and does not appear."""
    yield TensorSpec(EMBEDDING, (config.vocab_size, config.hidden_size))
    for layer in range(config.num_layers):
        for name, shape in (*_attention(config), *_feed_forward(config, layer), *_norms(config)):
            yield TensorSpec(f"model.layers.{layer}.{name}", shape)
    yield TensorSpec("model.norm.weight", (config.hidden_size,))
    if not config.has_tied_embeddings:
        yield TensorSpec(HEAD, (config.vocab_size, config.hidden_size))


def _attention(config: ModelConfig) -> Iterator[Entry]:
    if config.mla is not None:
        yield from _latent_attention(config, config.mla)
        return
    hidden = config.hidden_size
    query, keys = config.num_attention_heads * config.head_dim, config.num_kv_heads * config.head_dim
    yield from _matrix("self_attn.q_proj", query, hidden, has_bias=config.has_qkv_bias)
    yield from _matrix("self_attn.k_proj", keys, hidden, has_bias=config.has_qkv_bias)
    yield from _matrix("self_attn.v_proj", keys, hidden, has_bias=config.has_qkv_bias)
    yield from _matrix("self_attn.o_proj", hidden, query, has_bias=config.has_output_bias)


def _latent_attention(config: ModelConfig, mla: MlaConfig) -> Iterator[Entry]:
    hidden, num_heads = config.hidden_size, config.num_attention_heads
    query = num_heads * (mla.nope_dim + mla.rope_dim)
    if mla.q_rank is None:
        yield from _matrix("self_attn.q_proj", query, hidden)
    else:
        yield from _matrix("self_attn.q_a_proj", mla.q_rank, hidden, has_bias=config.has_qkv_bias)
        yield "self_attn.q_a_layernorm.weight", (mla.q_rank,)
        yield from _matrix("self_attn.q_b_proj", query, mla.q_rank)
    latent = mla.kv_rank + mla.rope_dim
    yield from _matrix("self_attn.kv_a_proj_with_mqa", latent, hidden, has_bias=config.has_qkv_bias)
    yield "self_attn.kv_a_layernorm.weight", (mla.kv_rank,)
    yield from _matrix("self_attn.kv_b_proj", num_heads * (mla.nope_dim + mla.v_dim), mla.kv_rank)
    yield from _matrix("self_attn.o_proj", hidden, num_heads * mla.v_dim, has_bias=config.has_output_bias)


def _feed_forward(config: ModelConfig, layer: int) -> Iterator[Entry]:
    experts, hidden = config.experts, config.hidden_size
    if experts is None or layer < experts.first_layer:
        yield from _gated("mlp", config.intermediate_size, hidden, ("gate_proj", "up_proj", "down_proj"), config)
    elif config.architecture == "mixtral":
        yield "block_sparse_moe.gate.weight", (experts.num_experts, hidden)
        for expert in range(experts.num_experts):
            yield from _gated(
                f"block_sparse_moe.experts.{expert}", experts.intermediate_size, hidden, ("w1", "w3", "w2"), config
            )
    else:
        yield "mlp.gate.weight", (experts.num_experts, hidden)
        if config.architecture == "deepseek_v3":
            yield "mlp.gate.e_score_correction_bias", (experts.num_experts,)
        names = ("gate_proj", "up_proj", "down_proj")
        for expert in range(experts.num_experts):
            yield from _gated(f"mlp.experts.{expert}", experts.intermediate_size, hidden, names, config)
        if experts.num_shared:
            shared = experts.num_shared * experts.intermediate_size
            yield from _gated("mlp.shared_experts", shared, hidden, names, config)


def _gated(prefix: str, inner: int, hidden: int, names: tuple[str, str, str], config: ModelConfig) -> Iterator[Entry]:
    gate, up, down = names
    yield from _matrix(f"{prefix}.{gate}", inner, hidden, has_bias=config.has_mlp_bias)
    yield from _matrix(f"{prefix}.{up}", inner, hidden, has_bias=config.has_mlp_bias)
    yield from _matrix(f"{prefix}.{down}", hidden, inner, has_bias=config.has_mlp_bias)


def _norms(config: ModelConfig) -> Iterator[Entry]:
    names = ["input_layernorm", "post_attention_layernorm"]
    if config.architecture == "gemma3_text":
        names += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    for name in names:
        yield f"{name}.weight", (config.hidden_size,)
    if config.architecture in ("gemma3_text", "qwen3"):
        yield "self_attn.q_norm.weight", (config.head_dim,)
        yield "self_attn.k_norm.weight", (config.head_dim,)


def _matrix(name: str, rows: int, columns: int, *, has_bias: bool = False) -> Iterator[Entry]:
    yield f"{name}.weight", (rows, columns)
    if has_bias:
        yield f"{name}.bias", (rows,)
