"""Gemma 3, text: norms before and after each half of a layer, five window layers to one that sees everything.

    x += post_norm(attention(pre_norm(x)));  x += post_norm(down(gelu(gate(pre_norm(x))) * up(pre_norm(x))))

Window layers rotate with a short base and without scaling. Norm weights are stored as w and used as 1 + w; embeddings
are scaled by sqrt(hidden_size).
"""

from dataclasses import dataclass

import torch

from tidegate_checkpoint.config import ModelConfig, parse_config
from tidegate_checkpoint.config_json import Json
from tidegate_engine.compute.kv_cache import PagedStep
from tidegate_engine.compute.layers import LayerLoader, gated_gelu, in_stretches, rms_norm
from tidegate_engine.compute.linear import Linear
from tidegate_engine.compute.rope import Rotation, inverse_frequencies, rotation_at
from tidegate_engine.models.base import HeadCounts
from tidegate_engine.models.settings import number, optional_number, rope_scaling


@dataclass(frozen=True)
class Layer:
    pre_attention_norm: torch.Tensor
    qkv: Linear
    qk_norm: torch.Tensor  # [query + key heads, head_dim]
    output: Linear
    post_attention_norm: torch.Tensor
    pre_mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear
    post_mlp_norm: torch.Tensor
    window: int | None

    def feed_forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(gated_gelu(self.gate_up(x)))


class Gemma3:
    """See models.base.Model."""

    def __init__(self, config: Json, loader: LayerLoader, device: torch.device) -> None:
        facts = parse_config(config, "the model's config")
        self._heads = HeadCounts.of(facts, loader.share)
        self._epsilon = number(config, "rms_norm_eps")
        self._scale = number(config, "query_pre_attn_scalar") ** -0.5
        self._attention_softcap = optional_number(config, "attn_logit_softcapping")
        self._logits_softcap = optional_number(config, "final_logit_softcapping")
        self._embedding_scale = facts.hidden_size**0.5
        global_base, local_base = number(config, "rope_theta"), number(config, "rope_local_base_freq")
        self._global_frequencies = inverse_frequencies(facts.head_dim, global_base, rope_scaling(config)).to(device)
        self._local_frequencies = inverse_frequencies(facts.head_dim, local_base).to(device)
        self._embedding, self._head = loader.embedding_and_head("model.embed_tokens", "lm_head")
        self._layers = loader.each(lambda index: _load_layer(facts, self._heads, loader, index), facts.num_layers)
        self._norm = 1 + loader.vector("model.norm.weight")

    def hidden(self, token_ids: torch.Tensor, positions: torch.Tensor, step: PagedStep) -> torch.Tensor:
        x = self._embedding(token_ids)
        x = x * torch.tensor(self._embedding_scale, dtype=x.dtype)  # rounded like the reference's in 16 bits
        global_rotation = rotation_at(positions, self._global_frequencies, x.dtype)
        local_rotation = rotation_at(positions, self._local_frequencies, x.dtype)
        for index, layer in enumerate(self._layers):
            rotation = global_rotation if layer.window is None else local_rotation
            x += self._attend(index, layer, x, rotation, step)
            x += self._feed_forward(layer, x)
        return self._normalised(x, self._norm)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = self._head(hidden).float()
        cap = self._logits_softcap
        return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)  # each copy would be of the vocabulary

    def _feed_forward(self, layer: Layer, x: torch.Tensor) -> torch.Tensor:
        fed_forward = in_stretches(layer.feed_forward, self._normalised(x, layer.pre_mlp_norm))
        return self._normalised(fed_forward, layer.post_mlp_norm)

    def _attend(self, index: int, layer: Layer, x: torch.Tensor, rotation: Rotation, step: PagedStep) -> torch.Tensor:
        heads, values = self._heads.split(layer.qkv(self._normalised(x, layer.pre_attention_norm)))
        attended = step.attend(
            index,
            self._normalised(heads, layer.qk_norm),
            values,
            rotation,
            scale=self._scale,
            window=layer.window,
            softcap=self._attention_softcap,
        )
        return self._normalised(layer.output(attended), layer.post_attention_norm)

    def _normalised(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, weight, self._epsilon)


def _load_layer(facts: ModelConfig, heads: HeadCounts, loader: LayerLoader, index: int) -> Layer:
    name = f"model.layers.{index}"
    attention, mlp = f"{name}.self_attn", f"{name}.mlp"
    return Layer(
        pre_attention_norm=1 + loader.vector(f"{name}.input_layernorm.weight"),
        qkv=loader.heads(facts.head_dim, f"{attention}.q_proj", f"{attention}.k_proj", f"{attention}.v_proj"),
        qk_norm=1 + heads.qk_norm(loader, attention),
        output=loader.summed(f"{attention}.o_proj"),
        post_attention_norm=1 + loader.vector(f"{name}.post_attention_layernorm.weight"),
        pre_mlp_norm=1 + loader.vector(f"{name}.pre_feedforward_layernorm.weight"),
        gate_up=loader.linear(f"{mlp}.gate_proj", f"{mlp}.up_proj"),
        down=loader.summed(f"{mlp}.down_proj"),
        post_mlp_norm=1 + loader.vector(f"{name}.post_feedforward_layernorm.weight"),
        window=facts.windows[index],
    )
