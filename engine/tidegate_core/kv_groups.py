"""How a model's layers share one pool of KV blocks: groups of equally many layers, each with a block table of its own.

    layers          full  window window window window window full  window ...      (Gemma 3: one in six sees everything)
    groups          full: layers 0, 6, 12    window 0: layers 1, 2, 3    window 1: layers 4, 5, 7    ...

A block holds 16 tokens of one group, so blocks of all groups have one size and any group may use any block. Layers with
a window stand in groups of their own, which hold no more than the window: that is what makes long contexts cheap.
Sizing multiplies these numbers, admission counts by them and the runner allocates by them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tidegate_core.shape import ModelShape


class LayerPlace(NamedTuple):
    """Where a layer's keys and values lie: the table of `group`, the cache tensor `layer`."""

    group: int
    layer: int


@dataclass(frozen=True)
class KvGroups:
    """`windows`: an entry for each group, None where its layers see everything; those come first."""

    windows: tuple[int | None, ...]
    layers_per_group: int

    def places(self, layer_windows: Sequence[int | None]) -> tuple[LayerPlace, ...]:
        """Each layer's place; layers with the same window fill their groups in order."""
        taken: dict[int | None, int] = {}
        places = []
        for window in layer_windows:
            number = taken.get(window, 0)
            taken[window] = number + 1
            group, layer = divmod(number, self.layers_per_group)
            places.append(LayerPlace(self.windows.index(window) + group, layer))
        return tuple(places)


def kv_groups(shape: ModelShape) -> KvGroups:
    """A group has as many layers as there are of the rarer kind; the last group of a kind may be filled up in part."""
    num_layers: dict[int | None, int] = {}
    for group in shape.attention:
        num_layers[group.window] = num_layers.get(group.window, 0) + group.num_layers
    size = min(num_layers.values())
    windows = [
        window
        for window in sorted(num_layers, key=lambda window: window or 0)
        for _ in range(-(-num_layers[window] // size))
    ]
    return KvGroups(tuple(windows), size)
