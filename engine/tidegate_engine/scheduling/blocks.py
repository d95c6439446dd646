"""The pool of KV blocks: who holds which, and one way back.

The scheduler grows a request's block table before a step and releases it when the request ends, for whatever reason.
Both are O(1) a block. A block is either on the free stack or in exactly one table: free + used == total, always.
"""

from collections.abc import Iterable
from typing import Protocol

from tidegate_engine.errors import OutOfBlocks


class BlockHolder(Protocol):
    """Whatever owns blocks. The table is a tuple: batches share it without a copy, and it grows once a block."""

    block_table: tuple[int, ...]


class BlockPool:
    """Blocks 0 .. num_blocks - 1 of `block_size` tokens each. The block freed last is used first: it is still warm."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = list(range(num_blocks - 1, -1, -1))
        self._is_free = bytearray(b"\x01" * num_blocks)

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        return self.num_blocks - len(self._free)

    def grow(self, holder: BlockHolder, num_tokens: int) -> None:
        """Makes the table cover `num_tokens`. Raises OutOfBlocks and changes nothing if too few blocks are free."""
        num_new = blocks_for(num_tokens, self.block_size) - len(holder.block_table)
        if num_new <= 0:
            return
        if num_new > len(self._free):
            raise OutOfBlocks(
                f"{num_new} KV blocks wanted for {num_tokens} tokens, {len(self._free)} of {self.num_blocks} are free"
            )
        new = tuple(self._free.pop() for _ in range(num_new))
        for block in new:
            self._is_free[block] = 0
        holder.block_table += new

    def release(self, holder: BlockHolder) -> None:
        """Takes all blocks back; a second release finds an empty table and does nothing."""
        table, holder.block_table = holder.block_table, ()
        for block in reversed(table):
            assert not self._is_free[block], f"KV block {block} was free already"
            self._is_free[block] = 1
            self._free.append(block)

    def check(self, holders: Iterable[BlockHolder]) -> None:
        """Asserts that every block is free or in exactly one of the tables: a leak or a double owner is our own bug."""
        held = [block for holder in holders for block in holder.block_table]
        assert len(set(held)) == len(held), "a KV block is in two tables"
        assert not any(self._is_free[block] for block in held), "a KV block in a table is on the free stack"
        assert len(held) + len(self._free) == self.num_blocks, (
            f"{len(held)} held + {len(self._free)} free KV blocks are not {self.num_blocks}"
        )


def blocks_for(num_tokens: int, block_size: int) -> int:
    """Blocks that hold so many tokens."""
    return -(-num_tokens // block_size)
