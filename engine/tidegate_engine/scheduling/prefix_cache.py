"""Which KV blocks hold the beginning of a sequence that somebody may ask for again. Owned by the block pool.

Blocks are found by the hashes of prefix_chain.py, and on a hit their own tokens are compared as well: a hash alone
decides nothing. Under one hash stands a block for each KV group. A window's layers need only the last blocks of a
beginning, so a hit is as long as all groups can serve:

    group that sees everything     x x x x x x .      6 blocks
    group with a window of 2       . . . x x . x      5 blocks, so the hit has 5
"""

from tidegate_engine.prefix_chain import Hash, PrefixChain, hash_link
from tidegate_engine.request import Terms
from tidegate_engine.runner import NULL_BLOCK


class _Entry:
    """What is cached under one hash: a block for each KV group, or NULL_BLOCK."""

    __slots__ = ("blocks", "content", "digest", "parent")

    def __init__(self, chain: PrefixChain, number: int, num_groups: int) -> None:
        self.digest = chain.digests[number]
        self.parent = chain.digests[number - 1] if number else chain.root
        self.content = chain.contents[number]
        self.blocks = [NULL_BLOCK] * num_groups


class PrefixCache:
    """An index over blocks of the pool, never larger than it; the pool decides what stays."""

    def __init__(self, windows: tuple[int | None, ...], block_size: int, hash_: Hash = hash_link) -> None:
        self.num_changes = 0
        self._windows = windows
        self._block_size = block_size
        self._hash = hash_
        self._entries: dict[bytes, _Entry] = {}
        self._place_of: dict[int, tuple[_Entry, int]] = {}
        self._growing = [group for group, window in enumerate(windows) if window is None]
        self._capped = {group: window for group, window in enumerate(windows) if window is not None}
        self._nothing = [NULL_BLOCK] * len(windows)

    def __len__(self) -> int:
        return len(self._place_of)

    def __contains__(self, block: int) -> bool:
        return block in self._place_of

    def chain(self, terms: Terms) -> PrefixChain:
        """The empty chain of a request with these terms."""
        return PrefixChain(terms.tenant, terms.cache_salt, self._block_size, self._hash)

    def insert(self, chain: PrefixChain, number: int, group: int, block: int) -> None:
        """A block that is full and computed. If another one holds the same already, this one stays unknown."""
        assert block != NULL_BLOCK, f"block {number} of KV group {group} was left behind before it was full"
        entry = self._entries.get(chain.digests[number])
        if entry is None:
            entry = self._entries[chain.digests[number]] = _Entry(chain, number, len(self._windows))
        elif not _is_block(entry, chain, number):
            return
        if entry.blocks[group] == NULL_BLOCK:
            entry.blocks[group] = block
            self._place_of[block] = entry, group
            self.num_changes += 1

    def forget(self, block: int) -> None:
        """The block is about to hold something else."""
        entry, group = self._place_of.pop(block)
        entry.blocks[group] = NULL_BLOCK
        self.num_changes += 1
        if entry.blocks == self._nothing:
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
        for number in range(num_blocks - 1, min(first for _, first in firsts) - 1, -1):
            entry = self._entry(chain, number)
            blocks = entry.blocks if entry else self._nothing
            if any(first <= number and blocks[group] == NULL_BLOCK for group, first in firsts):
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
