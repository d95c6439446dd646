r"""Who may start: a request is admitted only if the pool can never run out because of it.

Reserving prompt + max_tokens for everybody is safe and wastes most of the pool; admitting on the prompt alone ends in
preemptions. In between lies the true peak: decoding requests write one token a step each, so when the next one ends is
known, and its blocks are counted only until then.

    blocks
      |        ___ B ends          A decoding request holds `held + s` tokens s steps from now, and nothing after `left`
      |   ____/   |___ A ends      steps. The sum only falls where somebody ends, so its maximum is at one of those
      |__/            \___          instants: n of them, not max_tokens of them.
      +-------------------- s

What makes it safe, and what the scheduler must keep:
- a decoding request is in every step (the step budget is never below their number), so all of them move in lockstep;
- when a prompt will be computed is not known (chunks), so until its first token a request is counted as if it decoded
  from the next step on *and never ended*: by the time it does decode, it holds no more than was counted;
- blocks are counted, not tokens; ends before max_tokens only free blocks;
- a block that several hold is counted once, for the one that ends last (shared_blocks.py).
Then each step's peak is at most the last one's, and what was admitted fits for ever.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tidegate_core.kv_demand import KvDemand
from tidegate_engine.errors import BadRequest, NeverFits


class Claim(NamedTuple):
    """Tokens a request holds before the next step, and steps until it ends at the latest. Sorts by `left`.

    A request's last token is never computed yet, so `held` is one less than its tokens; one that has sampled nothing
    holds as much once its prompt is computed but for the last token.
    """

    left: int
    held: int


class Instant(NamedTuple):
    """Somebody ends after so many steps; what all who ran until then hold at that moment, where it is highest."""

    step: int
    blocks: int


def peak_blocks(
    decoding: Iterable[tuple[int, int]], prefilling: Sequence[Claim], kv: KvDemand, *, at_least: int = 0
) -> int:
    """The most blocks these requests can hold together at any later instant, or `at_least` if that is more.

    `decoding`: their claims, also as plain pairs, for hundreds are asked about many times a second.

    O(n log n). Where layers have a window, a request grows in their groups until it holds the cap and stays there: a
    second sum, of those that still grow. Instants that cannot exceed `at_least` even if every block were rounded up in
    full, and every window were full, are passed over quickly.
    """
    prefilled = sum(kv.prefilling_blocks(claim.held + claim.left) for claim in prefilling)
    peak = max(at_least, prefilled)
    descending = sorted(decoding, reverse=True)
    alive = AliveBlocks(descending, kv)
    rounding, num_growing = kv.block_size - 1, kv.num_growing
    most_capped = sum(cap.num_groups * cap.decoding for cap in kv.caps)
    held_tokens = 0
    for number, (left, held) in enumerate(descending, 1):
        held_tokens += held
        most = num_growing * ((held_tokens + number * (left + rounding)) // kv.block_size) + number * most_capped
        if most + prefilled > peak:
            used = alive.blocks(number, left)
            used += sum(kv.prefilling_blocks(other.held + min(other.left, left)) for other in prefilling)
            peak = max(peak, used)
    return peak


class AliveBlocks:
    """What the decoding requests that end last hold together, exactly. To be asked for ever more of them."""

    def __init__(self, descending: Sequence[tuple[int, int]], kv: KvDemand) -> None:
        self._descending = descending
        self._kv = kv
        self._growing = GrowingSum(kv.block_size)
        self._capped = [
            (cap, GrowingSum(kv.block_size), until_capped(descending, cap.decoding * kv.block_size)) for cap in kv.caps
        ]

    def blocks(self, num_alive: int, left: int) -> int:
        """Of the first so many, so many steps from now."""
        growing = self._growing
        for _, held in self._descending[growing.num : num_alive]:
            growing.add(held)
        blocks = self._kv.num_growing * growing.blocks(left)
        for cap, below_cap, claims in self._capped:
            while claims and claims[-1].left >= left:
                below_cap.add(claims.pop().held)
            blocks += cap.num_groups * (below_cap.blocks(left) + cap.decoding * (num_alive - below_cap.num))
        return blocks


class GrowingSum:
    """Blocks of requests that all grow by a token a step: rounding up is exact, by a histogram of places in a block."""

    def __init__(self, block_size: int) -> None:
        self.num = 0
        self._block_size = block_size
        self._whole_blocks = 0
        self._num_at_offset = [0] * block_size

    def add(self, held: int) -> None:
        blocks, offset = divmod(held + self._block_size - 1, self._block_size)
        self.num += 1
        self._whole_blocks += blocks
        self._num_at_offset[offset] += 1

    def blocks(self, num_steps: int) -> int:
        more_blocks, more_tokens = divmod(num_steps, self._block_size)
        crossing = sum(self._num_at_offset[self._block_size - more_tokens :])
        return self._whole_blocks + self.num * more_blocks + crossing


def until_capped(decoding: Iterable[tuple[int, int]], cap_tokens: int) -> list[Claim]:
    """The same requests as long as they hold less than the cap, soonest over first; those beyond it are left out."""
    claims = (Claim(min(left, cap_tokens - held), held) for left, held in decoding)
    return sorted(claim for claim in claims if claim.left > 0)


def check_can_ever_fit(num_prompt_tokens: int, max_tokens: int, *, context: int, pool_tokens: int) -> None:
    """Raises BadRequest or NeverFits for a request that could not even run alone."""
    if num_prompt_tokens < 1 or max_tokens < 1:
        raise BadRequest(
            f"a request needs a prompt and room for an answer: {num_prompt_tokens} prompt tokens, "
            f"max_tokens {max_tokens}; both must be at least 1"
        )
    total = num_prompt_tokens + max_tokens
    asked = f"{num_prompt_tokens} prompt tokens + max_tokens {max_tokens} = {total} tokens"
    if total > context:
        raise NeverFits(f"{asked}, but the context is {context} tokens: shorten the prompt or lower max_tokens")
    if total - 1 > pool_tokens:
        raise NeverFits(
            f"{asked}, but this engine's KV cache holds {pool_tokens} tokens: shorten the prompt or lower max_tokens"
        )
