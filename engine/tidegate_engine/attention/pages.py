"""One layer's keys and values in blocks, as they lie in memory: 16 or 32 bits, or 8 bits and a scale a vector.

    data    [num_blocks, 2, block_size, kv_heads, head_dim]   keys at index 0, values at 1
    scales  [num_blocks, 2, block_size, kv_heads]   fp16: what an element of 1 stands for; None: 1

A vector (one head's key, or value, at one position) is scaled by its own largest element as it is written, so that it
never depends on its neighbours and no outlier of another token spoils it. Nothing is ever rescaled.
"""

from dataclasses import dataclass

import torch

LARGEST_ELEMENT = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}  # what a vector's largest element becomes
SCALE_DTYPE = torch.float16


@dataclass(frozen=True, eq=False)
class KvPages:
    """A view of memory; what is written through it is there for everyone."""

    data: torch.Tensor
    scales: torch.Tensor | None = None

    @property
    def num_blocks(self) -> int:
        return self.data.shape[0]

    @property
    def block_size(self) -> int:
        return self.data.shape[2]

    @property
    def num_kv_heads(self) -> int:
        return self.data.shape[3]

    @property
    def num_bytes(self) -> int:
        return self.data.nbytes + (0 if self.scales is None else self.scales.nbytes)

    def write(self, rows: torch.Tensor, vectors: torch.Tensor) -> None:
        """Vectors [tokens, kv_heads, head_dim] into these rows of the pages seen as [num_blocks * 2 * block_size]."""
        if self.scales is None:
            elements = vectors.to(self.data.dtype)
        else:
            elements, scales = quantised(vectors, self.data.dtype)
            self.scales.view(-1, self.num_kv_heads).index_copy_(0, rows, scales)
        _bits(self.data).view(-1, *self.data.shape[3:]).index_copy_(0, rows, _bits(elements))

    def gathered(self, sides: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """What stands at these sides of blocks, see sides_of: [sides, block_size, kv_heads, head_dim]."""
        elements = _bits(self.data).flatten(0, 1).index_select(0, sides).view(self.data.dtype)
        if self.scales is None:
            return elements.to(dtype)
        scales = self.scales.flatten(0, 1).index_select(0, sides)
        return (elements.float() * scales.float().unsqueeze(-1)).to(dtype)


def sides_of(blocks: torch.Tensor) -> torch.Tensor:
    """int64 [2 * blocks]: the keys of all, then the values of all, so that one gather reads both."""
    keys = blocks.flatten().long() * 2
    return torch.cat((keys, keys + 1))


def quantised(vectors: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """8-bit elements and fp16 scales of vectors [..., dim]; elements * scale is as close as the dtype allows."""
    vectors = vectors.float()
    largest = LARGEST_ELEMENT[dtype]
    scales = (vectors.abs().amax(-1) / largest).to(SCALE_DTYPE)
    # Divided by the scale as it is kept. What rounds to no scale at all is less than 5e-6 and becomes 0.
    kept = scales.float().unsqueeze(-1)
    elements = (vectors / kept.where(kept > 0, torch.inf)).clamp_(-largest, largest)
    return (elements.round_() if dtype is torch.int8 else elements).to(dtype), scales


def _bits(elements: torch.Tensor) -> torch.Tensor:
    """Torch cannot index fp8, but bytes."""
    return elements.view(torch.uint8) if elements.dtype is torch.float8_e4m3fn else elements
