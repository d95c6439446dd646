"""The pool of KV blocks: who holds which, and one way back.

Before a step the scheduler makes a request's tables cover its tokens, and releases them when the request ends, for
whatever reason. There is a table for each KV group; all take from the one pool. Blocks that a window has left behind
are freed while the request runs, and NULL_BLOCK stands in their place:

    table of a group that sees everything    7  3  9  4  1
    table of a group with a window          -1 -1 -1  8  2       the last tokens see two blocks

A block is either free or in tables: free + used == total, always.
"""

from collections.abc import Iterable
from typing import Protocol

from tidegate_core.kv_demand import KvDemand
from tidegate_core.memory import STEP_TOKENS
from tidegate_engine.errors import OutOfBlocks
from tidegate_engine.runner import NULL_BLOCK


class BlockHolder(Protocol):
    """Whatever owns blocks. Tables are tuples: batches share them without a copy, and they grow once a block."""

    block_tables: tuple[tuple[int, ...], ...]


class BlockPool:
    """Blocks 0 .. num_blocks - 1 of `block_size` tokens each. The block freed last is used first: it is still warm."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        windows: tuple[int | None, ...] = (None,),
        max_chunk: int = STEP_TOKENS,
    ) -> None:
        """`windows`: one for each KV group, None where it sees everything. `max_chunk`: as in KvDemand."""
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.kv = KvDemand(windows, block_size, max_chunk)
        self._free = list(range(num_blocks - 1, -1, -1))
        self._is_free = bytearray(b"\x01" * num_blocks)

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        return self.num_blocks - len(self._free)

    def grow(self, holder: BlockHolder, num_tokens: int, start: int | None = None) -> None:
        """Makes the tables cover `num_tokens`, of which those from `start` (the last) are computed next.

        Blocks that these see no more are freed first. Raises OutOfBlocks if too few are free then.
        """
        if not holder.block_tables:
            holder.block_tables = ((),) * len(self.kv.windows)
        self.leave_behind(holder, num_tokens - 1 if start is None else start)
        tables = holder.block_tables
        num_blocks = blocks_for(num_tokens, self.block_size)
        num_new = sum(max(0, num_blocks - len(table)) for table in tables)
        if num_new > len(self._free):
            raise OutOfBlocks(
                f"{num_new} KV blocks wanted for {num_tokens} tokens, {len(self._free)} of {self.num_blocks} are free"
            )
        if num_new:
            holder.block_tables = tuple(table + self._take(num_blocks - len(table)) for table in tables)

    def leave_behind(self, holder: BlockHolder, start: int) -> None:
        """Frees the blocks that nothing computed from position `start` on will see."""
        if self.kv.caps:
            holder.block_tables = tuple(
                table if window is None else self._without_unseen(table, start - window + 1)
                for table, window in zip(holder.block_tables, self.kv.windows, strict=True)
            )

    def release(self, holder: BlockHolder) -> None:
        """Takes all blocks back; a second release finds no table and does nothing."""
        tables, holder.block_tables = holder.block_tables, ()
        for table in tables:
            self._give_back(table)

    def check(self, holders: Iterable[BlockHolder]) -> None:
        """Asserts that every block is free or in exactly one of the tables: a leak or a double owner is our own bug."""
        held = [block for holder in holders for table in holder.block_tables for block in table if block != NULL_BLOCK]
        assert len(set(held)) == len(held), "a KV block is in two tables"
        assert not any(self._is_free[block] for block in held), "a KV block in a table is on the free stack"
        assert len(held) + len(self._free) == self.num_blocks, (
            f"{len(held)} held + {len(self._free)} free KV blocks are not {self.num_blocks}"
        )

    def _take(self, num_blocks: int) -> tuple[int, ...]:
        taken = tuple(self._free.pop() for _ in range(num_blocks))
        for block in taken:
            self._is_free[block] = 0
        return taken

    def _without_unseen(self, table: tuple[int, ...], first_seen: int) -> tuple[int, ...]:
        """The table without the blocks wholly before position `first_seen`, which are freed."""
        num_unseen = min(max(0, first_seen) // self.block_size, len(table))
        if not num_unseen or table[num_unseen - 1] == NULL_BLOCK:
            return table
        self._give_back(table[:num_unseen])
        return (NULL_BLOCK,) * num_unseen + table[num_unseen:]

    def _give_back(self, blocks: tuple[int, ...]) -> None:
        for block in reversed(blocks):
            if block == NULL_BLOCK:
                return  # only further ones come
            assert not self._is_free[block], f"KV block {block} was free already"
            self._is_free[block] = 1
            self._free.append(block)


def blocks_for(num_tokens: int, block_size: int) -> int:
    """Blocks that hold so many tokens."""
    return -(-num_tokens // block_size)
