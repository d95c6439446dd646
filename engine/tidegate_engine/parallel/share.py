"""Which part of a model one of several devices holds: heads, rows, columns, vocabulary.

Asked by LayerLoader for every matrix and by model files for their heads. What a share weighs is
tidegate_core.memory's to say, which heads can be shared tidegate_core.kv's.
"""

from dataclasses import dataclass

from tidegate_core.errors import BadLaunch
from tidegate_core.kv import can_divide_heads
from tidegate_core.shape import ModelShape


@dataclass(frozen=True)
class Share:
    """That of device `rank` of `size`."""

    rank: int
    size: int

    def part(self, number: int) -> slice:
        """Of so many rows, columns or entries: as even as possible, the last devices have the odd ones."""
        return slice(number * self.rank // self.size, number * (self.rank + 1) // self.size)

    def heads(self, number: int) -> slice:
        """Of so many attention heads, which divide the devices or are divided by them: then several hold the same.

        4 KV heads on 8 devices: 0 0 1 1 2 2 3 3, each beside the query heads that read it.
        """
        first = number * self.rank // self.size
        return slice(first, first + max(1, number // self.size))


WHOLE = Share(rank=0, size=1)


def check_divisible(shape: ModelShape, size: int) -> None:
    """Raises BadLaunch with the numbers."""
    if can_divide_heads(shape, size):
        return
    kv_heads = " or ".join(sorted({str(group.num_kv_heads) for group in shape.attention}))
    raise BadLaunch(
        f"--tensor-parallel {size}: the model's {shape.num_attention_heads} attention heads and {kv_heads} key-value "
        f"heads cannot be divided between {size} devices; take another number"
    )
