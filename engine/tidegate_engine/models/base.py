"""What the runner asks of a model, whatever its family."""

from dataclasses import dataclass
from typing import Protocol, Self

import torch

from tidegate_checkpoint.config import ModelConfig
from tidegate_engine.compute.kv_cache import PagedStep
from tidegate_engine.compute.layers import LayerLoader
from tidegate_engine.parallel.share import Share


class Model(Protocol):
    """Token ids and positions are int64 [tokens], the ragged rows of a step one after the other."""

    def hidden(self, token_ids: torch.Tensor, positions: torch.Tensor, step: PagedStep) -> torch.Tensor:
        """Normalised hidden states [tokens, hidden_size]; writes the step's keys and values to the cache."""
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """fp32 [rows, vocab_size] of the rows that are sampled."""
        ...


@dataclass(frozen=True)
class HeadCounts:
    """How a fused projection divides into query, key and value heads: [query | key | value]."""

    num_query: int
    num_kv: int
    head_dim: int

    @classmethod
    def of(cls, facts: ModelConfig, share: Share) -> Self:
        """Those of a device that holds this share of the model."""
        query, kv = share.heads(facts.num_attention_heads), share.heads(facts.num_kv_heads)
        return cls(query.stop - query.start, kv.stop - kv.start, facts.head_dim)

    def split(self, projected: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Heads that are rotated (queries, then keys) and values, each [tokens, heads, head_dim]."""
        heads = projected.view(projected.shape[0], -1, self.head_dim)
        rotated, values = heads.split_with_sizes((self.num_query + self.num_kv, self.num_kv), 1)
        return rotated, values

    def qk_norm(self, loader: LayerLoader, attention: str) -> torch.Tensor:
        """Both norms as one, [query + key heads, head_dim]: a single call normalises all rotated heads."""
        query_norm, key_norm = (loader.vector(f"{attention}.{name}_norm.weight") for name in ("q", "k"))
        return torch.cat((query_norm.expand(self.num_query, -1), key_norm.expand(self.num_kv, -1)))
