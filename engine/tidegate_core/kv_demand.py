"""Blocks that a sequence holds, over all KV groups: the one arithmetic of sizing, admission and the door.

    group that sees everything    ceil(tokens / 16)
    group with a window           no more than the window covers, wherever in a block it begins

While its prompt is computed a sequence holds more of a window group than later: all tokens of a step's chunk are
written before any of them attends, and the first of them still sees a whole window before it.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from tidegate_core.fit import BLOCK_SIZE
from tidegate_core.memory import STEP_TOKENS


class WindowCap(NamedTuple):
    """Groups with the same window, and the most blocks of each that a sequence holds."""

    num_groups: int
    decoding: int
    prefilling: int


class _Totals(NamedTuple):
    """Blocks in all groups of a sequence with so many in each that grows: from a table until all caps are reached."""

    num_growing: int
    capped: int
    num_first: int
    first: list[int]

    @classmethod
    def of(cls, num_growing: int, caps: Sequence[tuple[int, int]]) -> "_Totals":
        highest = max([most for _, most in caps], default=0)
        first = [
            num_growing * num + sum([num_groups * min(num, most) for num_groups, most in caps])
            for num in range(highest + 1)
        ]
        return cls(num_growing, sum(num_groups * most for num_groups, most in caps), len(first), first)


@dataclass(frozen=True)
class KvDemand:
    """`windows`: one for each group, None where it sees everything. `max_chunk`: prompt tokens of a step at most."""

    windows: tuple[int | None, ...] = (None,)
    block_size: int = BLOCK_SIZE
    max_chunk: int = STEP_TOKENS

    @cached_property
    def num_growing(self) -> int:
        """Groups that hold every token of a sequence."""
        return self.windows.count(None)

    @cached_property
    def caps(self) -> tuple[WindowCap, ...]:
        """The other groups, by window."""
        windows = sorted({window for window in self.windows if window is not None})
        return tuple(
            WindowCap(
                self.windows.count(window),
                self._covered_blocks(window, 1),
                self._covered_blocks(window, self.max_chunk),
            )
            for window in windows
        )

    def decoding_blocks(self, num_tokens: int) -> int:
        """At most, by a sequence that samples a token a step."""
        blocks = -(-num_tokens // self.block_size)
        total = self.num_growing * blocks
        for cap in self.caps:
            total += cap.num_groups * min(blocks, cap.decoding)
        return total

    def prefilling_blocks(self, num_tokens: int) -> int:
        """At most, by a sequence in the midst of its prompt; also the most it ever holds on its way to this length."""
        blocks = -(-num_tokens // self.block_size)
        total = self.num_growing * blocks
        for cap in self.caps:
            total += cap.num_groups * min(blocks, cap.prefilling)
        return total

    def each_decoding(self, num_tokens: Sequence[int]) -> list[int]:
        """decoding_blocks() of many sequences."""
        return self._each(num_tokens, self._decoding_totals)

    def each_prefilling(self, num_tokens: Sequence[int]) -> list[int]:
        """prefilling_blocks() of many sequences."""
        return self._each(num_tokens, self._prefilling_totals)

    def fixed_blocks(self) -> int:
        """What a long sequence holds beside the groups that grow."""
        return sum(cap.num_groups * cap.decoding for cap in self.caps)

    def slot_tokens(self, num_tokens: int) -> int:
        """Places for tokens in blocks, by a sequence that samples, without rounding up to whole blocks."""
        capped = (cap.num_groups * min(num_tokens, cap.decoding * self.block_size) for cap in self.caps)
        return self.num_growing * num_tokens + sum(capped)

    def longest_sequence(self, num_blocks: int, limit: int) -> int:
        """Tokens, up to `limit`, of the longest sequence that a pool of so many blocks can take from start to end."""
        return bisect_right(range(limit + 1), num_blocks, key=self.prefilling_blocks) - 1

    @cached_property
    def _decoding_totals(self) -> "_Totals":
        return _Totals.of(self.num_growing, [(cap.num_groups, cap.decoding) for cap in self.caps])

    @cached_property
    def _prefilling_totals(self) -> "_Totals":
        return _Totals.of(self.num_growing, [(cap.num_groups, cap.prefilling) for cap in self.caps])

    def _each(self, num_tokens: Sequence[int], totals: "_Totals") -> list[int]:
        rounding, block_size = self.block_size - 1, self.block_size
        num_growing, capped, num_first, first = totals
        if num_first == 1 and num_growing == 1:
            return [(tokens + rounding) // block_size for tokens in num_tokens]
        return [
            first[num] if (num := (tokens + rounding) // block_size) < num_first else num_growing * num + capped
            for tokens in num_tokens
        ]

    def _covered_blocks(self, window: int, num_queries: int) -> int:
        """Most blocks that so many tokens in a row see, wherever in a block the first one stands."""
        num_seen = window - 1 + num_queries
        return (num_seen - 2) // self.block_size + 2 if num_seen > 1 else 1
