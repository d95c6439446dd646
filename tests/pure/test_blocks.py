"""The block pool under random growth and release."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from scripted_engine import request_of
from tidegate_engine.errors import OutOfBlocks
from tidegate_engine.request import Request
from tidegate_engine.scheduling.blocks import BlockPool

BLOCK_SIZE = 4
NUM_BLOCKS = 12


class PoolMachine(RuleBasedStateMachine):
    """Any order of grow and release keeps every block in one place."""

    holders = Bundle("holders")

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS, BLOCK_SIZE)
        self.live: list[Request] = []

    @rule(target=holders)
    def arrive(self) -> Request:
        holder = request_of(str(len(self.live)), 1, 1)
        self.live.append(holder)
        return holder

    @rule(holder=holders, num_tokens=st.integers(1, NUM_BLOCKS * BLOCK_SIZE))
    def grow(self, holder: Request, num_tokens: int) -> None:
        before, num_free = holder.block_tables, self.pool.num_free
        wanted = -(-num_tokens // BLOCK_SIZE) - len(before[0] if before else ())
        if wanted > num_free:
            with pytest.raises(OutOfBlocks, match=f"{wanted} KV blocks wanted for {num_tokens} tokens"):
                self.pool.grow(holder, num_tokens)
            assert (holder.block_tables or before, self.pool.num_free) == (before or holder.block_tables, num_free)
        else:
            self.pool.grow(holder, num_tokens)
            (table,) = holder.block_tables
            (old,) = before or ((),)
            assert table[: len(old)] == old
            assert len(table) == len(old) + max(0, wanted)

    @rule(holder=consumes(holders))
    def release_twice(self, holder: Request) -> None:
        self.pool.release(holder)
        num_free = self.pool.num_free
        self.pool.release(holder)
        assert self.pool.num_free == num_free

    @invariant()
    def every_block_has_one_place(self) -> None:
        self.pool.check(self.live)
        assert self.pool.num_free + self.pool.num_used == NUM_BLOCKS


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)


def test_a_leaked_block_is_noticed():
    pool = BlockPool(NUM_BLOCKS, BLOCK_SIZE)
    pool.grow(request_of("lost", 1, 1), 5)
    with pytest.raises(AssertionError, match="0 held"):
        pool.check([])


def test_a_block_with_two_owners_is_noticed():
    pool = BlockPool(NUM_BLOCKS, BLOCK_SIZE)
    first, second = request_of("a", 1, 1), request_of("b", 1, 1)
    pool.grow(first, 5)
    second.block_tables = first.block_tables
    with pytest.raises(AssertionError, match="two tables"):
        pool.check([first, second])


def test_a_block_freed_twice_is_noticed():
    pool = BlockPool(NUM_BLOCKS, BLOCK_SIZE)
    first, second = request_of("a", 1, 1), request_of("b", 1, 1)
    pool.grow(first, 5)
    second.block_tables = first.block_tables
    pool.release(first)
    with pytest.raises(AssertionError, match="free already"):
        pool.release(second)
