"""The pool of KV blocks: who holds which, and one way back.

Before a step the scheduler makes a request's tables cover its tokens, and releases them when the request ends, for
whatever reason. There is a table for each KV group; all take from the one pool. Blocks that a window has left behind
are freed while the request runs, and NULL_BLOCK stands in their place:

    table of a group that sees everything    7  3  9  4  1
    table of a group with a window          -1 -1 -1  8  2       the last tokens see two blocks

With a prefix cache full blocks may stand in several tables, and keep their contents after the last one is gone:

    free --take--> held (1 .. n tables) --the last table goes--> cached, or free if nothing worth keeping is in it
      ^               ^---------------- hit ------------------------|
      +-------------- evicted, least recently used first -----------+

free + cached + used == total, always. Cached blocks count as free for everybody else: they are taken when they must.
"""

from collections import Counter, OrderedDict
from collections.abc import Container, Iterable, Sequence
from itertools import chain
from typing import Protocol

from tidegate_core.kv_demand import KvDemand
from tidegate_core.memory import STEP_TOKENS
from tidegate_engine.errors import OutOfBlocks
from tidegate_engine.prefix_chain import PrefixChain
from tidegate_engine.request import Request
from tidegate_engine.runner import NULL_BLOCK
from tidegate_engine.scheduling.prefix_cache import PrefixCache

LOOK_UP_CHANGES = 64  # a look-up is trusted until so many blocks came into the cache or left it


class BlockHolder(Protocol):
    """Whatever owns blocks. Tables are tuples: batches share them without a copy, and they grow once a block."""

    block_tables: tuple[tuple[int, ...], ...]


class BlockPool:
    """Blocks 0 .. num_blocks - 1 of `block_size` tokens each. Of the free ones the last is used first: it is warm."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        windows: tuple[int | None, ...] = (None,),
        max_chunk: int = STEP_TOKENS,
        prefixes: PrefixCache | None = None,
    ) -> None:
        """`windows`: one for each KV group, None where it sees everything. `max_chunk`: as in KvDemand."""
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.kv = KvDemand(windows, block_size, max_chunk)
        self._prefixes = prefixes
        self._known: Container[int] = () if prefixes is None else prefixes.known
        self._window_groups = tuple(
            (window, tuple(group for group, other in enumerate(windows) if other == window))
            for window in dict.fromkeys(windows)
            if window is not None
        )
        self._free = list(range(num_blocks - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._num_tables = [0] * num_blocks

    @property
    def has_prefix_cache(self) -> bool:
        return self._prefixes is not None

    @property
    def num_free(self) -> int:
        """Blocks that can be taken, cached ones included."""
        return len(self._free) + len(self._cached)

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    @property
    def num_indexed(self) -> int:
        """Blocks that the prefix cache knows, held or not."""
        return 0 if self._prefixes is None else len(self._prefixes)

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_free

    def num_new(self, holder: BlockHolder, num_tokens: int) -> int:
        """Blocks that are taken when the holder grows to so many tokens, at most."""
        num_held = len(holder.block_tables[0]) if holder.block_tables else 0  # tables are equally long
        return max(0, blocks_for(num_tokens, self.block_size) - num_held) * len(self.kv.windows)

    def num_lacking(self, num_tokens: int) -> int:
        """Blocks that a new sequence of so many tokens needs and are not free; zero or less if all are."""
        return self.kv.decoding_blocks(num_tokens) - self.num_free

    def grow(self, holder: BlockHolder, num_tokens: int, start: int | None = None) -> None:
        """Makes the tables cover `num_tokens`, of which those from `start` (the last) are computed next.

        Blocks that these see no more are freed first. Raises OutOfBlocks if too few are free then.
        """
        if not holder.block_tables:
            holder.block_tables = ((),) * len(self.kv.windows)
        self.leave_behind(holder, num_tokens - 1 if start is None else start)
        num_new = self.num_new(holder, num_tokens)
        if num_new:
            tables, taken = holder.block_tables, self._take(num_new)
            num_groups = len(tables)
            holder.block_tables = tuple([table + taken[i::num_groups] for i, table in enumerate(tables)])

    def grow_by_block(self, holders: Sequence[BlockHolder], num_tokens: Sequence[int]) -> None:
        """As grow(), of all that decode and begin a new block with their last token: a dozen a step, hence at once.

        Raises OutOfBlocks.
        """
        for holder, num in zip(holders, num_tokens, strict=True):
            self.leave_behind(holder, num - 1)
        num_groups = len(self.kv.windows)
        if holders:
            taken = self._take(num_groups * len(holders))
            for number, holder in enumerate(holders):
                tables, first = holder.block_tables, number * num_groups
                holder.block_tables = tuple([table + taken[i : i + 1] for i, table in enumerate(tables, first)])

    def leave_behind(self, holder: BlockHolder, start: int) -> None:
        """Frees the blocks that nothing computed from position `start` on will see."""
        for window, groups in self._window_groups:
            table = holder.block_tables[groups[0]]  # those of the others have gone as far
            num_unseen = min(max(0, start - window + 1) // self.block_size, len(table))
            if num_unseen and table[num_unseen - 1] != NULL_BLOCK:
                self._forget_unseen(holder, groups, num_unseen)

    def release(self, holder: BlockHolder) -> None:
        """Takes all blocks back; a second release finds no table and does nothing."""
        tables, holder.block_tables = holder.block_tables, ()
        self._give_back(side_by_side(tables))

    def hash_tokens(self, request: Request) -> None:
        """Hashes what the request has. Slow for long prompts: whoever submits a request calls it in its own thread."""
        if self._prefixes is not None:
            self._chain(request).extend(request.token_ids, request.num_tokens // self.block_size)

    def look_up(self, request: Request) -> None:
        """Notes how many tokens of a waiting request are cached. Prompt logprobs need all tokens computed."""
        if self._prefixes is None or request.sampling.num_prompt_logprobs is not None:
            return
        chain = self._chain(request)
        if chain.looked_up_at < 0 or self._prefixes.num_changes - chain.looked_up_at >= LOOK_UP_CHANGES:
            self._look_up_now(self._prefixes, chain, request)

    def hit(self, request: Request) -> tuple[tuple[int, ...], ...]:
        """Tables that reuse() would give to a request now, or has given to it."""
        if self._prefixes is None or request.block_tables or request.sampling.num_prompt_logprobs is not None:
            return request.block_tables
        chain = self._chain(request)
        return self._prefixes.tables(chain, self._looked_up(self._prefixes, chain, request))

    def reuse(self, request: Request) -> None:
        """Puts the cached blocks of an admitted request into its tables and counts their tokens as computed."""
        if self._prefixes is None:
            return
        chain = self._chain(request)
        may_hit = request.sampling.num_prompt_logprobs is None
        num_blocks = self._looked_up(self._prefixes, chain, request) if may_hit else 0
        chain.num_kept = num_blocks
        chain.looked_up_at = -1
        request.num_computed_tokens, request.num_hit_tokens = request.num_hit_tokens, 0
        if num_blocks:
            request.block_tables = self._prefixes.tables(chain, num_blocks)
            for table in request.block_tables:
                self._share(table)

    def put_back(self, request: Request) -> None:
        """The reverse of reuse, and what becomes of a request that has to start again: all it held is given up."""
        self.release(request)
        request.num_computed_tokens = 0

    def keep(self, request: Request) -> tuple[int, int] | None:
        """Tells the cache of the blocks that are full and computed by now, before any of them is left behind.

        Returns which they are, from and to, if there are any.
        """
        if self._prefixes is None:
            return None
        chain = self._chain(request)
        first, end = chain.num_kept, request.num_computed_tokens // self.block_size
        if end <= first:
            return None
        chain.extend(request.token_ids, end)
        blocks_of_groups = zip(*[table[first:end] for table in request.block_tables], strict=True)
        for number, blocks in enumerate(blocks_of_groups, first):
            assert NULL_BLOCK not in blocks, f"block {number} was left behind before it was full"
            self._prefixes.insert(chain, number, blocks)
        chain.num_kept = end
        return first, end

    def check(self, holders: Iterable[BlockHolder]) -> None:
        """Asserts that every block is free, cached or in the tables that are counted: all else is our own bug."""
        tables = [table for holder in holders for table in holder.block_tables]
        held = Counter(block for table in tables for block in table if block != NULL_BLOCK)
        for block, num_tables in enumerate(self._num_tables):
            assert held[block] == num_tables, f"KV block {block} is in {held[block]} tables, not in {num_tables}"
        assert len(held) == self.num_used, f"{len(held)} held KV blocks, {self.num_used} counted as used"
        unused = [*self._free, *self._cached]
        assert len(set(unused)) == len(unused), "a KV block is free twice"
        assert not held.keys() & set(unused), "a KV block in a table is free"
        assert len(held) + len(unused) == self.num_blocks, (
            f"{len(held)} held + {len(unused)} free KV blocks are not {self.num_blocks}"
        )
        assert all(block in self._known for block in self._cached), "a cached KV block is in no index"
        assert not any(block in self._known for block in self._free), "a free KV block is in the index"

    def _chain(self, request: Request) -> PrefixChain:
        assert self._prefixes is not None
        if request.prefix_chain is None:
            request.prefix_chain = self._prefixes.chain(request.terms)
        return request.prefix_chain

    def _looked_up(self, prefixes: PrefixCache, chain: PrefixChain, request: Request) -> int:
        """Blocks that are cached for it right now."""
        if chain.looked_up_at == prefixes.num_changes:
            return request.num_hit_tokens // self.block_size
        return self._look_up_now(prefixes, chain, request)

    def _look_up_now(self, prefixes: PrefixCache, chain: PrefixChain, request: Request) -> int:
        """The last token is always computed: somebody has to tell what comes after it."""
        most_blocks = (request.num_tokens - 1) // self.block_size
        chain.extend(request.token_ids, most_blocks)
        num_blocks = prefixes.longest_hit(chain, most_blocks)
        chain.looked_up_at = prefixes.num_changes
        request.num_hit_tokens = num_blocks * self.block_size
        return num_blocks

    def _take(self, num_blocks: int) -> tuple[int, ...]:
        """At least one. Raises OutOfBlocks, and takes none."""
        if num_blocks > self.num_free:
            raise OutOfBlocks(f"{num_blocks} KV blocks wanted, {self.num_free} of {self.num_blocks} are free")
        free, num_tables = self._free, self._num_tables
        taken = free[: -num_blocks - 1 : -1]
        del free[-num_blocks:]
        if len(taken) < num_blocks:
            assert self._prefixes is not None
            oldest, num_evicted = self._cached.popitem, num_blocks - len(taken)
            evicted = [oldest(False)[0] for _ in range(num_evicted)]  # not the last
            self._prefixes.forget(evicted)
            taken += evicted
        for block in taken:
            num_tables[block] = 1
        return tuple(taken)

    def _share(self, blocks: tuple[int, ...]) -> None:
        for block in blocks:
            if block != NULL_BLOCK:
                self._num_tables[block] += 1
                if self._num_tables[block] == 1:
                    del self._cached[block]

    def _forget_unseen(self, holder: BlockHolder, groups: tuple[int, ...], num_unseen: int) -> None:
        tables, nulls = list(holder.block_tables), (NULL_BLOCK,) * num_unseen
        first = num_unseen - 1
        while first and tables[groups[0]][first - 1] != NULL_BLOCK:
            first -= 1
        self._give_back(side_by_side([tables[group][first:num_unseen] for group in groups]))
        for group in groups:
            tables[group] = nulls + tables[group][num_unseen:]
        holder.block_tables = tuple(tables)

    def _give_back(self, blocks: Sequence[int]) -> None:
        """Ends first: so the end of a sequence is evicted before its beginning, which more requests have in common."""
        num_tables, known = self._num_tables, self._known
        for block in reversed(blocks):
            if block == NULL_BLOCK:
                continue
            num_left = num_tables[block] - 1
            assert num_left >= 0, f"KV block {block} was free already"
            num_tables[block] = num_left
            if num_left:
                continue
            if block in known:
                self._cached[block] = None
            else:
                self._free.append(block)


def side_by_side(tables: Sequence[Sequence[int]]) -> Sequence[int]:
    """By position, and at each position by group.

    So blocks that were taken together go and are evicted together: a hit needs all groups, and looking in few places
    of the index is fast.
    """
    return tables[0] if len(tables) == 1 else list(chain.from_iterable(zip(*tables, strict=True)))


def blocks_for(num_tokens: int, block_size: int) -> int:
    """Blocks that hold so many tokens."""
    return -(-num_tokens // block_size)
