"""Shapes of known models for sizing tests: only what decides about bytes, the rest is filled in."""

from tidegate_core.shape import AttentionGroup, LayerKind, ModelShape, TpRule, WeightGroup, WeightRole


def full_layers(num_layers: int, num_kv_heads: int, head_dim: int) -> AttentionGroup:
    return AttentionGroup(LayerKind.FULL, num_layers, num_kv_heads, head_dim)


def window_layers(num_layers: int, num_kv_heads: int, head_dim: int, window: int) -> AttentionGroup:
    return AttentionGroup(LayerKind.WINDOW, num_layers, num_kv_heads, head_dim, window)


def mla_layers(num_layers: int, rank: int, rope: int) -> AttentionGroup:
    return AttentionGroup(LayerKind.MLA, num_layers, 1, rank + rope)


def shape_of(
    *attention: AttentionGroup,
    dtype: str = "bf16",
    linear_elements: int = 6_946_000_000,
    embedding_elements: int = 622_000_000,
    has_tied_embeddings: bool = False,
    max_context: int = 40_960,
    num_attention_heads: int = 32,
) -> ModelShape:
    """By default about the size of Qwen3-8B: 36 layers with 8 KV heads of 128."""
    groups = [
        WeightGroup(WeightRole.EMBEDDING, TpRule.SPLIT, dtype, embedding_elements, 2 * embedding_elements),
        WeightGroup(WeightRole.LINEAR, TpRule.SPLIT, dtype, linear_elements, 2 * linear_elements),
        WeightGroup(WeightRole.NORM, TpRule.REPLICATED, dtype, 300_000, 600_000),
    ]
    if not has_tied_embeddings:
        groups.append(WeightGroup(WeightRole.HEAD, TpRule.SPLIT, dtype, embedding_elements, 2 * embedding_elements))
    return ModelShape(
        architecture="qwen3",
        num_parameters=sum(group.num_elements for group in groups),
        dtype=dtype,
        hidden_size=4096,
        intermediate_size=12_288,
        vocab_size=151_936,
        num_attention_heads=num_attention_heads,
        max_context=max_context,
        attention=attention or (full_layers(36, 8, 128),),
        weights=tuple(groups),
        has_tied_embeddings=has_tied_embeddings,
        fingerprint="0" * 32,
    )
