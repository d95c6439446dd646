"""Which KV blocks hold the beginning of a sequence that somebody may ask for again. Owned by the block pool.

Blocks are found by the hashes of prefix_chain.py, and on a hit their own tokens are compared as well: a hash alone
decides nothing. Under one hash stands a block for each KV group. A window's layers need only the last blocks of a
beginning, so a hit is as long as all groups can serve:

    group that sees everything     x x x x x x .      6 blocks
    group with a window of 2       . . . x x . x      5 blocks, so the hit has 5
"""

from collections.abc import Sequence
from typing import NamedTuple

from tidegate_engine.prefix_chain import Hash, PrefixChain, hash_link
from tidegate_engine.request import Terms
from tidegate_engine.runner import NULL_BLOCK


class _Entry:
    """What is cached under one hash: a block for each KV group, or NULL_BLOCK where there is none (any more)."""

    __slots__ = ("blocks", "content", "digest", "num_blocks", "parent")

    def __init__(self, chain: PrefixChain, number: int, num_groups: int) -> None:
        self.digest = chain.digests[number]
        self.parent = chain.digests[number - 1] if number else chain.root
        self.content = chain.contents[number]
        self.blocks = [NULL_BLOCK] * num_groups
        self.num_blocks = 0


class _Needed(NamedTuple):
    """Groups with the same window, and the first block that the token after a hit sees of them."""

    first: int
    groups: list[int]


class PrefixCache:
    """An index over blocks of the pool, never larger than it; the pool decides what stays."""

    def __init__(self, windows: tuple[int | None, ...], block_size: int, hash_: Hash = hash_link) -> None:
        self.num_changes = 0
        self._windows = windows
        self._block_size = block_size
        self._hash = hash_
        self._entries: dict[bytes, _Entry] = {}
        self.known: dict[int, _Entry] = {}  # by block
        self._growing = [group for group, window in enumerate(windows) if window is None]
        self._window_groups = [
            (window, [group for group, other in enumerate(windows) if other == window])
            for window in sorted({window for window in windows if window is not None}, reverse=True)
        ]

    def __len__(self) -> int:
        return len(self.known)

    def chain(self, terms: Terms) -> PrefixChain:
        """The empty chain of a request with these terms."""
        return PrefixChain(terms.tenant, terms.cache_salt, self._block_size, self._hash)

    def insert(self, chain: PrefixChain, number: int, blocks: Sequence[int]) -> None:
        """One for each KV group, full and computed. Where another one holds the same already, this one stays unknown.

        NULL_BLOCK stands for a group that has none.
        """
        entry = self._entries.get(chain.digests[number])
        if entry is None:
            entry = self._entries[chain.digests[number]] = _Entry(chain, number, len(self._windows))
        elif entry.num_blocks == len(blocks) or self._entry(chain, number) is None:
            return
        stored, before = entry.blocks, entry.num_blocks
        for group, block in enumerate(blocks):
            if stored[group] == NULL_BLOCK and block != NULL_BLOCK:
                stored[group] = block
                self.known[block] = entry
                entry.num_blocks += 1
        self.num_changes += entry.num_blocks - before

    def forget(self, blocks: Sequence[int]) -> None:
        """They are about to hold something else. Hundreds a step where there are many groups."""
        take_out, entries = self.known.pop, self._entries
        self.num_changes += len(blocks)
        for block in blocks:
            entry = take_out(block)
            if entry.num_blocks == 1:
                del entries[entry.digest]
                continue
            stored = entry.blocks
            stored[stored.index(block)] = NULL_BLOCK
            entry.num_blocks -= 1

    def longest_hit(self, chain: PrefixChain, most_blocks: int) -> int:
        """Blocks of the longest beginning that all groups have: of a group with a window what its next token sees."""
        entries = self._contiguous(chain, min(most_blocks, len(chain.digests)))
        return self._seen_by_windows(entries) if self._window_groups else len(entries)

    def _contiguous(self, chain: PrefixChain, most_blocks: int) -> list[_Entry | None]:
        """What is there from the start on, as far as all groups without a window have it."""
        found: list[_Entry | None] = []
        num_groups, growing = len(self._windows), self._growing
        for number in range(most_blocks):
            entry = self._entry(chain, number)
            if growing:
                if entry is None:
                    break
                if entry.num_blocks < num_groups and NULL_BLOCK in [entry.blocks[group] for group in growing]:
                    break
            found.append(entry)
        return found

    def _seen_by_windows(self, entries: Sequence[_Entry | None]) -> int:
        """Of so many blocks: a hit ends before the last block that a window after it would need and does not have."""
        num_blocks = number = len(entries)
        needed = self._needed(num_blocks)
        while number > needed[0].first:
            number -= 1
            if self._is_missing(entries[number], number, needed):
                num_blocks = number
                needed = self._needed(num_blocks)
        return num_blocks

    def _needed(self, num_blocks: int) -> list[_Needed]:
        """What windows see after so many blocks, the widest window first."""
        return [_Needed(self._first_needed(num_blocks, window), groups) for window, groups in self._window_groups]

    def _is_missing(self, entry: _Entry | None, number: int, needed: Sequence[_Needed]) -> bool:
        if entry is None:
            return True
        if entry.num_blocks == len(self._windows):
            return False
        return any(
            first <= number and NULL_BLOCK in [entry.blocks[group] for group in groups] for first, groups in needed
        )

    def tables(self, chain: PrefixChain, num_blocks: int) -> tuple[tuple[int, ...], ...]:
        """The blocks of a hit, by group; NULL_BLOCK where its window has passed."""
        entries = [self._entry(chain, number) for number in range(num_blocks)]
        tables = []
        for group, window in enumerate(self._windows):
            first = self._first_needed(num_blocks, window)
            tables.append((NULL_BLOCK,) * first + tuple([entry.blocks[group] for entry in entries[first:] if entry]))
        return tuple(tables)

    def _entry(self, chain: PrefixChain, number: int) -> _Entry | None:
        digests = chain.digests
        entry = self._entries.get(digests[number])
        if entry is None or entry.content != chain.contents[number]:
            return None
        return entry if entry.parent == (digests[number - 1] if number else chain.root) else None

    def _first_needed(self, num_blocks: int, window: int | None) -> int:
        """The first of so many blocks that the token after them sees."""
        return 0 if window is None else max(0, num_blocks * self._block_size - window + 1) // self._block_size
