"""Which KV blocks hold the beginning of a sequence that somebody may ask for again. Owned by the block pool.

Blocks are found by the hashes of prefix_chain.py, and on a hit their own tokens are compared as well: a hash alone
decides nothing. Under one hash stands a block for each KV group. A window's layers need only the last blocks of a
beginning, so a hit is as long as all groups can serve:

    group that sees everything     x x x x x x .      6 blocks
    group with a window of 2       . . . x x . x      5 blocks, so the hit has 5
"""

from collections.abc import Sequence

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
        self._capped = {group: window for group, window in enumerate(windows) if window is not None}

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
        elif entry.num_blocks == len(blocks) or not _is_block(entry, chain, number):
            return
        stored, before = entry.blocks, entry.num_blocks
        for group, block in enumerate(blocks):
            if stored[group] == NULL_BLOCK and block != NULL_BLOCK:
                stored[group] = block
                self.known[block] = entry
                entry.num_blocks += 1
        self.num_changes += entry.num_blocks - before

    def forget(self, blocks: Sequence[int]) -> None:
        """They are about to hold something else."""
        known = self.known
        self.num_changes += len(blocks)
        for block in blocks:
            entry = known.pop(block)
            entry.blocks[entry.blocks.index(block)] = NULL_BLOCK
            entry.num_blocks -= 1
            if not entry.num_blocks:
                del self._entries[entry.digest]

    def longest_hit(self, chain: PrefixChain, most_blocks: int) -> int:
        """Blocks of the longest beginning that all groups have: of a group with a window what its next token sees."""
        num_blocks = self._contiguous(chain, min(most_blocks, len(chain.digests)))
        while num_blocks and self._capped:
            missing = self._last_missing(chain, num_blocks)
            if missing is None:
                break
            num_blocks = missing
        return num_blocks

    def _contiguous(self, chain: PrefixChain, most_blocks: int) -> int:
        """Blocks from the start on that all groups without a window have."""
        if not self._growing:
            return most_blocks
        for number in range(most_blocks):
            entry = self._entry(chain, number)
            if entry is None or any(entry.blocks[group] == NULL_BLOCK for group in self._growing):
                return number
        return most_blocks

    def _last_missing(self, chain: PrefixChain, num_blocks: int) -> int | None:
        """The last block that the windows after so many blocks need and do not have: a hit must end before it."""
        firsts = [(group, self._first_needed(num_blocks, window)) for group, window in self._capped.items()]
        num_groups = len(self._windows)
        for number in range(num_blocks - 1, min(first for _, first in firsts) - 1, -1):
            entry = self._entry(chain, number)
            if entry is None:
                return number
            if entry.num_blocks < num_groups:
                for group, first in firsts:
                    if first <= number and entry.blocks[group] == NULL_BLOCK:
                        return number
        return None

    def tables(self, chain: PrefixChain, num_blocks: int) -> tuple[tuple[int, ...], ...]:
        """The blocks of a hit, by group; NULL_BLOCK where its window has passed."""
        entries = [self._entry(chain, number) for number in range(num_blocks)]
        tables = []
        for group, window in enumerate(self._windows):
            first = self._first_needed(num_blocks, window)
            tables.append((NULL_BLOCK,) * first + tuple(entry.blocks[group] for entry in entries[first:] if entry))
        return tuple(tables)

    def _entry(self, chain: PrefixChain, number: int) -> _Entry | None:
        entry = self._entries.get(chain.digests[number])
        return entry if entry and _is_block(entry, chain, number) else None

    def _first_needed(self, num_blocks: int, window: int | None) -> int:
        """The first of so many blocks that the token after them sees."""
        return 0 if window is None else max(0, num_blocks * self._block_size - window + 1) // self._block_size


def _is_block(entry: _Entry, chain: PrefixChain, number: int) -> bool:
    parent = chain.digests[number - 1] if number else chain.root
    return entry.content == chain.contents[number] and entry.parent == parent
