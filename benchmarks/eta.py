"""Are promised waits true? `python -m benchmarks eta [--requests N]`.

Replays traces through the door in virtual time at several overloads and compares the wait predicted when a request was
accepted with the time until its first step. Error is |predicted - real| / real over real waits above half a second.
Steps take 10 % more or less than the machine's step times (standard deviation); nothing is known about answers at first
but what the engine is told is usual, which is wrong here. In the last scenarios every second request is a spot request,
each class has a row, and half as many requests follow that are not in the figures: spot requests wait for them too.
"""

import argparse
import random
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from benchmarks.replay import AZURE, MOONCAKE, Machine, Outcome, Site, at_rate, replay
from tidegate_cli.bench.trace import TraceRequest, read_trace
from tidegate_engine.request import ServiceClass

SHORTEST_WAIT = 0.5
BATCH_SECONDS = 3.0  # the grid of the Mooncake trace's times


class Accuracy(NamedTuple):
    """Relative errors of predicted waits; `bias` is positive where they were too long."""

    num_waits: int
    median_wait: float
    median_error: float
    p90_error: float
    bias: float


def accuracy_of(outcomes: Sequence[Outcome]) -> Accuracy:
    pairs = [
        (outcome.promised_wait, outcome.waited)
        for outcome in outcomes
        if outcome.promised_wait is not None and outcome.waited is not None and outcome.waited > SHORTEST_WAIT
    ]
    errors = sorted((promised - waited) / waited for promised, waited in pairs)
    sizes = sorted(abs(error) for error in errors)
    return Accuracy(
        len(pairs),
        statistics.median(waited for _, waited in pairs),
        statistics.median(sizes),
        sizes[int(0.9 * len(sizes))],
        statistics.median(errors),
    )


def spread(requests: Sequence[TraceRequest]) -> list[TraceRequest]:
    """Requests that the trace puts at the same instant, evenly inside its grid, in the order of a seed."""
    rng = random.Random(3)
    moved = [replace(each, arrival_seconds=each.arrival_seconds + rng.random() * BATCH_SECONDS) for each in requests]
    return sorted(moved, key=lambda each: each.arrival_seconds)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1000)
    args = parser.parse_args(arguments)
    azure, mooncake = read_trace(AZURE), spread(read_trace(MOONCAKE))
    pool_20, pool_60 = Machine(2000, max_wait_seconds=30.0), Machine(6000, max_wait_seconds=30.0)
    long_prompts = Machine(30_000, max_tokens=2048, max_wait_seconds=60.0)
    scenarios = (
        ("azure", "pool, barely", azure, 0.4, pool_20),
        ("azure", "pool, twofold", azure, 0.8, pool_20),
        ("azure", "pool, short queue", azure, 0.8, replace(pool_20, max_wait_seconds=6.0)),
        ("azure", "pool, barely", azure, 1.2, pool_60),
        ("azure", "pool, twofold", azure, 2.0, pool_60),
        ("azure", "12 slots", azure, 0.6, replace(pool_60, slots=12)),
        ("azure", "told 1000 is usual", azure, 0.8, replace(pool_20, usual_output_tokens=1000)),
        ("azure", "told 50 is usual", azure, 0.8, replace(pool_20, usual_output_tokens=50)),
        ("mooncake", "long prompts", mooncake, 0.3, long_prompts),
    )
    mixed = (
        ("azure", "pool, barely", azure, 0.5, pool_20),
        ("azure", "pool, half more", azure, 0.7, pool_20),
        ("azure", "pool, barely", azure, 1.2, pool_60),
        ("azure", "pool, half more", azure, 1.6, pool_60),
        ("azure", "12 slots", azure, 0.4, replace(pool_60, slots=12)),
    )
    print(f"{'trace':>9} {'bottleneck':>25} {'waits':>6} {'median wait':>11} {'error p50':>9} {'p90':>6} {'bias':>7}")
    for trace, name, requests, factor, machine in scenarios:
        result = replay(Site(machine), at_rate(requests[: args.requests], factor))
        print_row(trace, name, accuracy_of(result.outcomes))
    for trace, name, requests, factor, machine in mixed:
        some = at_rate(requests[: args.requests * 3 // 2], factor)
        result = replay(Site(machine), some, classes=tuple(ServiceClass))
        for service_class in ServiceClass:
            outcomes = [each for each in result.outcomes[: args.requests] if each.service_class is service_class]
            print_row(trace, f"{name}, {service_class}", accuracy_of(outcomes))


def print_row(trace: str, name: str, found: Accuracy) -> None:
    print(
        f"{trace:>9} {name:>25} {found.num_waits:>6} {found.median_wait:>9.1f} s {found.median_error:>9.1%} "
        f"{found.p90_error:>6.0%} {found.bias:>+7.1%}",
        flush=True,
    )


if __name__ == "__main__":
    main()
