"""The paged KV cache as tensors, and a step's way through it: write this step's keys and values, then attend.

One tensor a layer, [num_blocks, 2, block_size, kv_heads, head_dim]: a block's keys and values lie side by side, so that
freeing, copying or moving a block is one stretch of memory. Which block belongs to whom only the scheduler knows.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import prod
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap

import torch

from tidegate_core.quantity import format_bytes
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

    @property
    def pending_bytes(self) -> int:
        """Host memory that blocks will take once they are written, none of them counted as written."""
        return self.num_bytes if self.layers[0].device.type == "cpu" else 0


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
        """All zeros, since masked reads multiply what is there by 0. Raises MemoryError.

        On CUDA it is there at once: what does not fit fails now and not under load. On CPU the system gives pages as
        blocks are first written, so that an engine with a large pool starts at once and takes what it has needed so
        far; the pool was planned within the limit, so that the rest is there when it is asked for.
        """
        shape = (num_blocks, 2, self.block_size, self.num_kv_heads, self.head_dim)
        if device.type == "cpu":
            return KvCache(tuple(_zero_pages(shape, self.dtype) for _ in range(self.num_layers)))
        return KvCache(tuple(torch.zeros(shape, dtype=self.dtype, device=device) for _ in range(self.num_layers)))


def _zero_pages(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Private zero pages straight from the system: torch's allocator may hand out used memory, which it would clear."""
    num_bytes = prod(shape) * dtype.itemsize
    try:
        pages = mmap(-1, num_bytes, flags=MAP_PRIVATE | MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"the system has no {format_bytes(num_bytes)} for KV blocks: {error}") from error
    return torch.frombuffer(pages, dtype=dtype).view(shape)


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
