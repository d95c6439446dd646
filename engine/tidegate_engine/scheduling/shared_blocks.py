r"""Which of the blocks that several guaranteed requests hold are counted for whom: once, for the one that ends last.

    blocks of a common beginning    held by A (ends at 90), B (at 40), C (computes its prompt: no end is known)
    counted for                     C; when C decodes and will end at 60: for A

Whoever else holds them is counted for that much less as long as it lives. That is what is held, at every step to come:
the one that is counted is there as long as any of them. When somebody ends sooner than it might, what was counted for
it goes, and what was counted for it alone passes to the next one to end: no more than went. So the peak never rises.

Blocks with the same holders form a segment. A request joins few segments, the largest: what it holds of others is
counted for it in full, which is more than is held and therefore safe. Blocks of groups with a window are never shared
here, for each holder leaves them behind at a step of its own. Running asks and tells; names are request ids.
"""

import math
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import NamedTuple

MAX_SEGMENTS = 8  # that a request joins when it starts
FEWEST_BLOCKS = 2  # of a segment that is worth it

Changes = dict[str, int]  # by how many more blocks others are counted less, by name


class Credit(NamedTuple):
    """Blocks that somebody is counted for already, until the step at which the last of them ends."""

    num_blocks: int
    until: float


class Segment:
    """`holders` with the step at which each ends, last the one that is counted."""

    __slots__ = ("blocks", "holders")

    def __init__(self, blocks: Iterable[int], holders: list[tuple[float, str]]) -> None:
        self.blocks = set(blocks)
        self.holders = holders


class SharedBlocks:
    """Segments by block and by holder."""

    def __init__(self) -> None:
        self.total = 0  # blocks that are held and counted for others, summed over all who hold them
        self._segment_of: dict[int, Segment] = {}
        self._held: dict[str, list[Segment]] = {}
        self._ends: dict[str, float] = {}
        self._shared: defaultdict[str, int] = defaultdict(int)

    def num_shared(self, name: str) -> int:
        """Blocks that it holds and is not counted for."""
        return self._shared.get(name, 0)

    def credits(self, blocks: Collection[int]) -> list[Credit]:
        """If somebody started that holds these."""
        return [Credit(len(part), segment.holders[-1][0]) for segment, part in self._parts(blocks)]

    def join(self, name: str, blocks: Collection[int]) -> Changes:
        """It starts with these blocks; when it ends is not known before its prompt is computed."""
        self._ends[name] = math.inf
        held = self._held[name] = []
        changes: Changes = defaultdict(int)
        alone = [block for block in blocks if block not in self._segment_of]
        for segment, part in self._parts(blocks):
            joined = segment if len(part) == len(segment.blocks) else self._split(segment, part)
            _, counted = joined.holders[-1]
            insort(joined.holders, (math.inf, name))
            held.append(joined)
            self._count(counted if joined.holders[-1][1] == name else name, len(part), changes)
        self.hold(name, alone)
        return changes

    def hold(self, name: str, blocks: Collection[int]) -> None:
        """It holds these too, and nobody else does: it has computed them."""
        if not blocks:
            return
        held = self._held[name]
        if not held or len(held[-1].holders) > 1:
            held.append(Segment((), [(self._ends[name], name)]))
        own = held[-1]
        own.blocks.update(blocks)
        self._segment_of.update(dict.fromkeys(blocks, own))

    def decode(self, name: str, end: int) -> Changes:
        """Its end is known now: somebody else may end later."""
        changes: Changes = defaultdict(int)
        before, self._ends[name] = (self._ends[name], name), end
        for segment in self._held[name]:
            holders = segment.holders
            was_counted = holders[-1] == before
            del holders[bisect_left(holders, before)]
            insort(holders, (end, name))
            _, counted = holders[-1]
            if was_counted and counted != name:
                self._count(name, len(segment.blocks), changes)
                self._count(counted, -len(segment.blocks), changes)
        return changes

    def leave(self, name: str) -> Changes:
        """It has ended."""
        changes: Changes = defaultdict(int)
        place = (self._ends.pop(name), name)
        for segment in self._held.pop(name):
            holders = segment.holders
            was_counted = holders[-1] == place
            del holders[bisect_left(holders, place)]
            if not holders:
                for block in segment.blocks:
                    del self._segment_of[block]
            else:
                self._count(holders[-1][1] if was_counted else name, -len(segment.blocks), changes)
        assert not self._shared.pop(name, 0), f"{name} has ended and is still counted"
        return changes

    def _parts(self, blocks: Collection[int]) -> list[tuple[Segment, list[int]]]:
        """The largest segments among these blocks, and which of the blocks are theirs."""
        parts: dict[Segment, list[int]] = {}
        for block in blocks:
            segment = self._segment_of.get(block)
            if segment is not None:
                parts.setdefault(segment, []).append(block)
        found = [(segment, part) for segment, part in parts.items() if len(part) >= FEWEST_BLOCKS]
        if len(found) > MAX_SEGMENTS:
            found = sorted(found, key=lambda each: -len(each[1]))[:MAX_SEGMENTS]
        return found

    def _split(self, segment: Segment, part: Collection[int]) -> Segment:
        """The part as a segment of its own, with the same holders."""
        split = Segment(part, segment.holders.copy())
        segment.blocks.difference_update(part)
        self._segment_of.update(dict.fromkeys(part, split))
        for _, name in split.holders:
            self._held[name].insert(0, split)  # the last one may be that of its own blocks still to come
        return split

    def _count(self, name: str, num_blocks: int, changes: Changes) -> None:
        self._shared[name] += num_blocks
        self.total += num_blocks
        changes[name] += num_blocks
