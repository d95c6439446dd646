"""Layers of which each device has a part, made by LayerLoader where several share a model.

    split by outputs   q k v gate up        each device goes on with its own heads and columns: nothing to tell
    split by inputs    o down               each has a part of every sum: SummedLinear
    split by tokens    embedding, head      SplitEmbedding, GatheredLinear

Each is called by all devices in the same order, since model files are the same everywhere.
"""

import torch
import torch.nn.functional as F

from tidegate_engine.compute.linear import Linear
from tidegate_engine.parallel.group import DeviceGroup


class SummedLinear:
    """A product whose columns are spread: what each device has is added up, the same on all of them."""

    def __init__(self, layer: Linear, group: DeviceGroup) -> None:
        self._layer = layer
        self._group = group

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._group.summed(self._layer(x))


class GatheredLinear:
    """A product whose rows are spread: the first device gets it whole, the others keep their part."""

    def __init__(self, layer: Linear, group: DeviceGroup, num_outputs: int) -> None:
        self._layer = layer
        self._group = group
        self._num_outputs = num_outputs

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._group.gathered(self._layer(x), self._num_outputs)


class SplitEmbedding:
    """Rows are looked up where they are; all others give zeros, so the sum is exact."""

    def __init__(self, table: torch.Tensor, first: int, dtype: torch.dtype, group: DeviceGroup) -> None:
        """`table` begins with token `first`."""
        self._table = table
        self._first = first
        self._dtype = dtype
        self._group = group

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        own = token_ids - self._first
        is_elsewhere = (own < 0) | (own >= len(self._table))
        rows = F.embedding(own.masked_fill_(is_elsewhere, 0), self._table).to(self._dtype)
        return self._group.summed(rows.masked_fill_(is_elsewhere[:, None], 0))
