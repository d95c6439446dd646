"""How full the pool gets while requests wait: `python -m benchmarks admission [--requests N]`.

Replays the Azure conversation trace, every request with max_tokens 1,024, at a rate that the pool cannot follow, in
virtual time: admission by the peak formula against admission that reserves prompt + max_tokens for everybody, and the
same with spot requests that use what guaranteed ones leave. Then the same requests behind a system prompt of 2,048
tokens, with a prefix cache: its blocks counted for every request against once for all.
"""

import argparse
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import replace

from benchmarks.replay import AZURE, PREFIX_ID_TOKENS, Machine, Replay, Site, at_rate, replay
from tidegate_cli.bench.trace import TraceRequest, read_trace
from tidegate_engine.request import Request, ServiceClass
from tidegate_engine.scheduling.scheduler import Scheduler
from tidegate_engine.scheduling.shared_blocks import Segment, SharedBlocks

SYSTEM_PROMPT_TOKENS = 4 * PREFIX_ID_TOKENS
POOLS = ((2000, 1.0), (4000, 2.0), (8000, 4.0))  # blocks, and how many times faster than in the trace requests come


class ReservingScheduler(Scheduler):
    """The baseline: whoever does not fit with its max_tokens beside everybody else's waits until somebody has ended."""

    def _lacking_blocks(self, candidate: Request, *, is_partial: bool) -> int:  # noqa: ARG002 - as its base
        return 0 if self._running.fits_in_full(candidate) else 1

    def _steps_until_fewer(self, num_lacking: int) -> int:  # noqa: ARG002 - as its base
        return 1 << 30


class NothingShared(SharedBlocks):
    """The other baseline: blocks in common are counted for each of those who hold them."""

    def _parts(self, blocks: Collection[int]) -> list[tuple[Segment, list[int]]]:  # noqa: ARG002 - as its base
        return []


def with_system_prompt(requests: Sequence[TraceRequest]) -> list[TraceRequest]:
    """All begin alike; what follows is each one's own."""
    common = tuple(range(SYSTEM_PROMPT_TOKENS // PREFIX_ID_TOKENS))
    num_own = max(-(-asked.num_prompt_tokens // PREFIX_ID_TOKENS) for asked in requests)
    return [
        replace(
            asked,
            num_prompt_tokens=SYSTEM_PROMPT_TOKENS + asked.num_prompt_tokens,
            prefix_ids=(*common, *range(len(common) + number * num_own, len(common) + (number + 1) * num_own)),
        )
        for number, asked in enumerate(requests)
    ]


def counted_for_each(machine: Machine, requests: Sequence[TraceRequest]) -> Replay:
    site = Site(machine)
    site.engine.scheduler._running.shared = NothingShared()  # noqa: SLF001 - nothing else differs
    return replay(site, requests, has_door=False)


def with_peak(machine: Machine, requests: Sequence[TraceRequest]) -> Replay:
    return replay(Site(machine), requests, has_door=False)


def with_reservation(machine: Machine, requests: Sequence[TraceRequest]) -> Replay:
    site = Site(machine)
    engine = site.engine
    engine.scheduler = ReservingScheduler(
        engine.pool, engine.queue, slots=engine.scheduler.slots, counters=engine.counters, lengths=engine.lengths
    )
    return replay(site, requests, has_door=False)


def with_spot(machine: Machine, requests: Sequence[TraceRequest], spot: Sequence[TraceRequest]) -> Replay:
    """Spot requests wait from the start, more than can ever be served beside the others."""
    site = Site(machine)
    for asked in spot:
        site.queue(asked, ServiceClass.SPOT)
    coming = deque(requests)
    while coming or any(not request.is_spot for request in site.engine.scheduler.running):
        while coming and coming[0].arrival_seconds <= site.runner.seconds:
            site.queue(coming.popleft())
        site.step()
    return site.result


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=800)
    args = parser.parse_args(arguments)
    requests = read_trace(AZURE)
    print(f"{args.requests} requests of the Azure conversation trace, max_tokens 1,024, while requests wait:")
    print(f"{'blocks':>7} {'admission':>12} {'pool used':>10} {'running':>8} {'tokens/s':>9} {'preempted':>10}")
    for num_blocks, factor in POOLS:
        machine = Machine(num_blocks)
        some = at_rate(requests[: args.requests], factor)
        reserved, peak = with_reservation(machine, some), with_peak(machine, some)
        spot = with_spot(machine, some, requests[args.requests : 2 * args.requests])
        for name, result in (("reserving", reserved), ("peak", peak), ("peak + spot", spot)):
            print_row(num_blocks, name, result)
        occupancy = peak.occupancy(num_blocks) / reserved.occupancy(num_blocks)
        speed = peak.output_tokens_a_second() / reserved.output_tokens_a_second()
        print(f"        peak / reserving: {occupancy:.2f}x of the pool, {speed:.2f}x of the tokens a second")
    print_shared(requests[: args.requests])


def print_shared(requests: Sequence[TraceRequest]) -> None:
    print(f"\nthe same behind a system prompt of {SYSTEM_PROMPT_TOKENS} tokens, with a prefix cache:")
    print(f"{'blocks':>7} {'counted':>12} {'pool used':>10} {'running':>8} {'tokens/s':>9} {'preempted':>10}")
    for num_blocks, factor in POOLS:
        machine = Machine(num_blocks, has_prefix_cache=True)
        some = with_system_prompt(at_rate(requests, factor))
        each, once = counted_for_each(machine, some), with_peak(machine, some)
        for name, result in (("for each", each), ("once", once)):
            print_row(num_blocks, name, result)
        running = once.running() / each.running()
        speed = once.output_tokens_a_second() / each.output_tokens_a_second()
        print(f"        once / for each: {running:.2f}x requests running, {speed:.2f}x of the tokens a second")


def print_row(num_blocks: int, name: str, result: Replay) -> None:
    print(
        f"{num_blocks:>7} {name:>12} {result.occupancy(num_blocks):>10.1%} {result.running():>8.1f} "
        f"{result.output_tokens_a_second():>9.0f} {result.counters.preemptions:>10}",
        flush=True,
    )


if __name__ == "__main__":
    main()
