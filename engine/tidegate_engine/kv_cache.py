"""The paged KV cache as tensors, and a step's way through it: write this step's keys and values, then attend.

One tensor a layer, [num_blocks, 2, block_size, kv_heads, head_dim]: a block's keys and values lie side by side, so that
freeing, copying or moving a block is one stretch of memory. Which block belongs to whom only the scheduler knows.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch

from tidegate_engine.attention.base import Attention, AttentionInputs


@dataclass(frozen=True)
class KvCache:
    """All layers' blocks."""

    layers: tuple[torch.Tensor, ...]

    @property
    def num_blocks(self) -> int:
        return self.layers[0].shape[0]

    @property
    def block_size(self) -> int:
        return self.layers[0].shape[2]

    @property
    def num_bytes(self) -> int:
        return sum(layer.nbytes for layer in self.layers)


@dataclass(frozen=True)
class KvLayout:
    """Shape of a cache but for the number of blocks."""

    num_layers: int
    block_size: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype

    @property
    def block_bytes(self) -> int:
        """One block of all layers."""
        return self.num_layers * 2 * self.block_size * self.num_kv_heads * self.head_dim * self.dtype.itemsize

    def allocate(self, num_blocks: int, device: torch.device) -> KvCache:
        """Filled with zeros at once: what does not fit fails now and not under load, and garbage is never read."""
        shape = (num_blocks, 2, self.block_size, self.num_kv_heads, self.head_dim)
        return KvCache(
            tuple(torch.empty(shape, dtype=self.dtype, device=device).zero_() for _ in range(self.num_layers))
        )


@dataclass(frozen=True)
class PagedStep:
    """What a model's attention layers see of a step."""

    cache: KvCache
    inputs: AttentionInputs
    attention: Attention

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        *,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
    ) -> torch.Tensor:
        """Stores keys and values [tokens, kv_heads, head_dim], then attends; returns [tokens, heads * head_dim]."""
        blocks = self.cache.layers[layer]
        key_rows, value_rows = _rows(self.inputs, self.cache.block_size)
        rows = blocks.view(-1, *blocks.shape[3:])
        rows.index_copy_(0, key_rows, keys.to(blocks.dtype))
        rows.index_copy_(0, value_rows, values.to(blocks.dtype))
        output = self.attention(query.contiguous(), blocks, self.inputs, scale=scale, window=window, softcap=softcap)
        return output.flatten(1)


@lru_cache(maxsize=1)  # the same for all layers of a step
def _rows(inputs: AttentionInputs, block_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Where the step's keys and values stand in a layer seen as [num_blocks * 2 * block_size] rows."""
    slots = inputs.slot_mapping
    key_rows = slots + slots // block_size * block_size
    return key_rows, key_rows + block_size
