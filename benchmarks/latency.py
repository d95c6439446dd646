"""Does the step budget hold the objective and use what is left? `python -m benchmarks latency`.

In virtual time, at several objectives for the time between tokens: twenty conversations decode while prompts of 4,000
tokens keep coming. Prints the gaps between their tokens and the prompt tokens computed a second, which are to be
compared with what the machine's step times would allow at exactly the objective.
"""

import statistics
from typing import NamedTuple

from benchmarks.replay import Machine, Site
from tidegate_cli.bench.trace import TraceRequest

OBJECTIVES = (0.05, 0.1, 0.2)
NUM_CHATS, CHAT_TOKENS = 20, 600
PROMPT_TOKENS = 4000


class Latency(NamedTuple):
    """`used_share`: prompt tokens computed, as a part of what steps of exactly the objective would compute."""

    itl_p50: float
    itl_p95: float
    prompt_tokens_a_second: float
    used_share: float
    num_skipped: int  # steps in which a conversation under way got no token


def measure(itl_seconds: float, *, noise: float = 0.05) -> Latency:
    site = Site(Machine(20_000, itl_seconds=itl_seconds, noise=noise, max_tokens=CHAT_TOKENS))
    for _ in range(NUM_CHATS):
        site.queue(TraceRequest(0.0, 100, CHAT_TOKENS))
    chats = {str(number) for number in range(NUM_CHATS)}
    while site.engine.scheduler.num_decoding < NUM_CHATS:
        site.step()
    for _ in range(50):  # the fit of step times settles
        site.step()
    gaps, num_skipped, began = [], 0, site.runner.seconds
    before = site.result.counters.prompt_tokens
    for _ in range(400):
        while len(site.engine.queue) < 3:
            site.queue(TraceRequest(0.0, PROMPT_TOKENS, 1))
        last = site.runner.seconds
        told = {output.request_id for output in site.step()}
        gaps.append(site.runner.seconds - last)
        num_skipped += len(chats - told)
    seconds = site.runner.seconds - began
    prompt_tokens = (site.result.counters.prompt_tokens - before) / seconds
    return Latency(
        statistics.median(gaps),
        statistics.quantiles(gaps, n=20)[-1],
        prompt_tokens,
        prompt_tokens / _most_prompt_tokens(site, itl_seconds),
        num_skipped,
    )


def _most_prompt_tokens(site: Site, itl_seconds: float) -> float:
    """A second, if each step took the objective; the chats' context counts as it is at the end."""
    truth = site.machine.step_time
    spare = itl_seconds - truth.predict(NUM_CHATS, NUM_CHATS * CHAT_TOKENS)
    return spare / truth.seconds_per_token / itl_seconds


def main() -> None:
    print(f"{NUM_CHATS} conversations beside prompts of {PROMPT_TOKENS} tokens")
    print(f"{'objective':>10} {'ITL p50':>8} {'p95':>7} {'prompt tokens/s':>16} {'of the possible':>16} {'skipped':>8}")
    for objective in OBJECTIVES:
        found = measure(objective)
        print(
            f"{objective * 1e3:>7.0f} ms {found.itl_p50 * 1e3:>5.0f} ms {found.itl_p95 * 1e3:>4.0f} ms "
            f"{found.prompt_tokens_a_second:>16.0f} {found.used_share:>16.0%} {found.num_skipped:>8}"
        )


if __name__ == "__main__":
    main()
