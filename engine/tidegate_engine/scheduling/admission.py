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
- blocks are counted, not tokens; ends before max_tokens only free blocks.
Then each step's peak is at most the last one's, and what was admitted fits for ever.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tidegate_engine.errors import BadRequest, NeverFits
from tidegate_engine.scheduling.blocks import blocks_for


class Claim(NamedTuple):
    """Tokens a request holds before the next step, and steps until it ends at the latest. Sorts by `left`.

    A request's last token is never computed yet, so `held` is one less than its tokens; one that has sampled nothing
    holds as much once its prompt is computed but for the last token.
    """

    left: int
    held: int


def peak_blocks(decoding: Iterable[Claim], prefilling: Sequence[Claim], block_size: int, *, at_least: int = 0) -> int:
    """The most blocks these requests can hold together at any later instant, or `at_least` if that is more.

    O(n log n): rounding up to blocks is exact because decoders are kept in a histogram of their place within a block.
    Instants that cannot exceed `at_least` even if every block were rounded up in full are passed over quickly.
    """
    prefilled = sum(blocks_for(claim.held + claim.left, block_size) for claim in prefilling)
    peak = max(at_least, prefilled)
    num_alive = rounded_tokens = whole_blocks = 0
    num_at_offset = [0] * block_size
    for left, held in sorted(decoding, reverse=True):
        num_alive += 1
        rounded = held + block_size - 1
        rounded_tokens += rounded
        blocks, offset = divmod(rounded, block_size)
        whole_blocks += blocks
        num_at_offset[offset] += 1
        if (rounded_tokens + num_alive * left) // block_size + prefilled <= peak:
            continue
        more_blocks, more_tokens = divmod(left, block_size)
        used = whole_blocks + num_alive * more_blocks + sum(num_at_offset[block_size - more_tokens :])
        for other in prefilling:
            used += blocks_for(other.held + min(other.left, left), block_size)
        peak = max(peak, used)
    return peak


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
