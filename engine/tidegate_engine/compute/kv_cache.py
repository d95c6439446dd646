"""The paged KV cache as tensors, and a step's way through it: write this step's keys and values, then attend.

A block belongs to one group of layers (tidegate_core.kv_groups), and tensor i keeps layer i of whichever group that is:
[num_blocks, 2, block_size, kv_heads, head_dim]: a block's keys and values lie side by side, so that
freeing, copying or moving a block is one stretch of memory, and in 8 bits one more for its scales (attention/pages.py).
Which block belongs to whom only the scheduler knows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap

import torch

from tidegate_core.kv_groups import LayerPlace
from tidegate_core.quantity import format_bytes
from tidegate_engine.attention.base import Attention, AttentionInputs
from tidegate_engine.attention.pages import LARGEST_ELEMENT, SCALE_DTYPE, KvPages
from tidegate_engine.compute.heads import placed
from tidegate_engine.compute.rope import Rotation


@dataclass(frozen=True)
class KvCache:
    """Tensor i holds the i-th layer of each KV group, in whichever blocks are the group's."""

    layers: tuple[KvPages, ...]

    @property
    def num_blocks(self) -> int:
        return self.layers[0].num_blocks

    @property
    def block_size(self) -> int:
        return self.layers[0].block_size

    @property
    def num_bytes(self) -> int:
        return sum(layer.num_bytes for layer in self.layers)

    @property
    def pending_bytes(self) -> int:
        """Host memory that blocks will take once they are written, none of them counted as written."""
        return self.num_bytes if self.layers[0].data.device.type == "cpu" else 0


@dataclass(frozen=True)
class KvLayout:
    """Shape of a cache but for the number of blocks."""

    num_layers: int  # of a group
    block_size: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype

    @property
    def block_bytes(self) -> int:
        """One block, which all layers of a group share."""
        vector_bytes = self.head_dim * self.dtype.itemsize + (SCALE_DTYPE.itemsize if self.has_scales else 0)
        return self.num_layers * 2 * self.block_size * self.num_kv_heads * vector_bytes

    @property
    def has_scales(self) -> bool:
        return self.dtype in LARGEST_ELEMENT

    def allocate(self, num_blocks: int, device: torch.device) -> KvCache:
        """All zeros, since masked reads multiply what is there by 0. Raises MemoryError.

        On CUDA it is there at once: what does not fit fails now and not under load. On CPU the system gives pages as
        blocks are first written, so that an engine with a large pool starts at once and takes what it has needed so
        far; the pool was planned within the limit, so that the rest is there when it is asked for.
        """
        return KvCache(tuple(self._layer(num_blocks, device) for _ in range(self.num_layers)))

    def _layer(self, num_blocks: int, device: torch.device) -> KvPages:
        vectors = (num_blocks, 2, self.block_size, self.num_kv_heads)
        scales = _zeros(vectors, SCALE_DTYPE, device) if self.has_scales else None
        return KvPages(_zeros((*vectors, self.head_dim), self.dtype, device), scales)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """On CPU private pages straight from the system; torch's allocator may hand out used memory, and would clear it."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    num_bytes = prod(shape) * dtype.itemsize
    try:
        pages = mmap(-1, num_bytes, flags=MAP_PRIVATE | MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"the system has no {format_bytes(num_bytes)} for KV blocks: {error}") from error
    return torch.frombuffer(pages, dtype=dtype).view(shape)


@dataclass(frozen=True)
class PagedStep:
    """What a model's attention layers see of a step: `places` by layer, `inputs` by KV group."""

    cache: KvCache
    places: Sequence[LayerPlace]
    inputs: Sequence[AttentionInputs]
    attention: Attention

    def attend(
        self,
        layer: int,
        heads: torch.Tensor,
        values: torch.Tensor,
        rotation: Rotation,
        *,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
    ) -> torch.Tensor:
        """Rotates query and key heads, stores keys and values, then attends; returns [tokens, heads * head_dim].

        `heads` [tokens, heads + kv_heads, head_dim] hold queries, then keys; `values` [tokens, kv_heads, head_dim].
        """
        place = self.places[layer]
        pages, inputs = self.cache.layers[place.layer], self.inputs[place.group]
        queries = placed(heads, values, rotation, pages, inputs)
        return self.attention(queries, pages, inputs, scale=scale, window=window, softcap=softcap).flatten(1)
