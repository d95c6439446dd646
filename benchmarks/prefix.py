"""What the prefix cache hits: `python -m benchmarks prefix [--requests N]`.

Replays the Mooncake conversation trace in virtual time at several pool sizes, on a machine that keeps up with it. A hit
is a prompt token that need not be computed. The bound is a cache that forgets nothing and knows each prompt from its
arrival on, not only from when it was computed.
"""

import argparse
from collections.abc import Sequence

from benchmarks.eta import spread
from benchmarks.replay import MOONCAKE, PREFIX_ID_TOKENS, Machine, Site, replay
from tidegate_cli.bench.trace import TraceRequest, read_trace
from tidegate_engine.scheduling.step_fit import StepTime

POOLS = (64_000, 128_000, 256_000, 512_000)
BLOCK_TOKENS = 16
FAST = StepTime(base_seconds=0.01, seconds_per_token=1e-5, seconds_per_context_token=1e-9)


def infinite_cache(requests: Sequence[TraceRequest]) -> float:
    """Share of all prompt tokens; whole blocks only, and a prompt's last token is always computed."""
    known: dict[int, int] = {}  # tokens of each prefix id
    hit = total = 0
    for asked in requests:
        total += asked.num_prompt_tokens
        most = (asked.num_prompt_tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS
        found, is_unbroken = 0, True
        for index, prefix_id in enumerate(asked.prefix_ids):
            here = min(PREFIX_ID_TOKENS, asked.num_prompt_tokens - index * PREFIX_ID_TOKENS)
            here -= here % BLOCK_TOKENS
            if is_unbroken:
                found += min(known.get(prefix_id, 0), here)
            is_unbroken &= known.get(prefix_id, 0) >= PREFIX_ID_TOKENS
            known[prefix_id] = max(known.get(prefix_id, 0), here)
        hit += min(found, most)
    return hit / total


def hit_share(num_blocks: int, requests: Sequence[TraceRequest]) -> float:
    site = Site(Machine(num_blocks, step_time=FAST, max_tokens=2048, has_prefix_cache=True))
    counters = replay(site, requests, has_door=False).counters
    return counters.prefix_hit_tokens / counters.prefix_queried_tokens


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2000)
    args = parser.parse_args(arguments)
    requests = spread(read_trace(MOONCAKE)[: args.requests])
    bound = infinite_cache(requests)
    print(f"{len(requests)} requests of the Mooncake conversation trace; prompt tokens that need not be computed:")
    print(f"an infinite cache {bound:.1%}")
    for num_blocks in POOLS:
        share = hit_share(num_blocks, requests)
        print(f"{num_blocks * BLOCK_TOKENS / 1e6:>5.1f} M tokens {share:>6.1%}, {share / bound:.0%} of it", flush=True)


if __name__ == "__main__":
    main()
