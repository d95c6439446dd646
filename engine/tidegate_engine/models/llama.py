"""Llama and its descendants: Mistral (window), Qwen2 (biases, which the checkpoint shows), Qwen3 (QK norm).

x += attention(norm(x));  x += down(silu(gate(norm(x))) * up(norm(x)))
"""

from dataclasses import dataclass

import torch

from tidegate_checkpoint.config import ModelConfig, parse_config
from tidegate_checkpoint.config_json import Json
from tidegate_engine.compute.kv_cache import PagedStep
from tidegate_engine.compute.layers import LayerLoader, gated_silu, in_stretches, rms_norm
from tidegate_engine.compute.linear import Linear
from tidegate_engine.compute.rope import Rotation, inverse_frequencies, rotation_at
from tidegate_engine.models.base import HeadCounts
from tidegate_engine.models.settings import number, rope_scaling


@dataclass(frozen=True)
class Layer:
    attention_norm: torch.Tensor
    qkv: Linear
    qk_norm: torch.Tensor | None  # [query + key heads, head_dim]
    output: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear
    window: int | None

    def feed_forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(gated_silu(self.gate_up(x)))


class Llama:
    """See models.base.Model."""

    def __init__(self, config: Json, loader: LayerLoader, device: torch.device) -> None:
        facts = parse_config(config, "the model's config")
        self._heads = HeadCounts.of(facts, loader.share)
        self._epsilon = number(config, "rms_norm_eps")
        self._scale = facts.head_dim**-0.5
        frequencies = inverse_frequencies(facts.head_dim, number(config, "rope_theta"), rope_scaling(config))
        self._frequencies = frequencies.to(device)
        self._embedding, self._head = loader.embedding_and_head("model.embed_tokens", "lm_head")
        self._layers = loader.each(lambda index: _load_layer(facts, self._heads, loader, index), facts.num_layers)
        self._norm = loader.vector("model.norm.weight")

    def hidden(self, token_ids: torch.Tensor, positions: torch.Tensor, step: PagedStep) -> torch.Tensor:
        x = self._embedding(token_ids)
        rotation = rotation_at(positions, self._frequencies, x.dtype)
        for index, layer in enumerate(self._layers):
            x += self._attend(index, layer, rms_norm(x, layer.attention_norm, self._epsilon), rotation, step)
            x += in_stretches(layer.feed_forward, rms_norm(x, layer.mlp_norm, self._epsilon))
        return rms_norm(x, self._norm, self._epsilon)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._head(hidden).float()

    def _attend(self, index: int, layer: Layer, x: torch.Tensor, rotation: Rotation, step: PagedStep) -> torch.Tensor:
        heads, values = self._heads.split(layer.qkv(x))
        if layer.qk_norm is not None:
            heads = rms_norm(heads, layer.qk_norm, self._epsilon)
        return layer.output(step.attend(index, heads, values, rotation, scale=self._scale, window=layer.window))


def _load_layer(facts: ModelConfig, heads: HeadCounts, loader: LayerLoader, index: int) -> Layer:
    attention, mlp = f"model.layers.{index}.self_attn", f"model.layers.{index}.mlp"
    return Layer(
        attention_norm=loader.vector(f"model.layers.{index}.input_layernorm.weight"),
        qkv=loader.heads(facts.head_dim, f"{attention}.q_proj", f"{attention}.k_proj", f"{attention}.v_proj"),
        qk_norm=heads.qk_norm(loader, attention) if facts.architecture == "qwen3" else None,
        output=loader.summed(f"{attention}.o_proj"),
        mlp_norm=loader.vector(f"model.layers.{index}.post_attention_layernorm.weight"),
        gate_up=loader.linear(f"{mlp}.gate_proj", f"{mlp}.up_proj"),
        down=loader.summed(f"{mlp}.down_proj"),
        window=facts.windows[index],
    )
