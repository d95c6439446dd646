"""What is sent and when: a list of requests, made before the first is sent. Pure; randomness comes in by seed.

Closed loop: `concurrency` clients send the next request when their last has ended, so a slow server is asked less.
Open loop: every request has its own moment, whatever became of those before, as with users who do not know each other.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tidegate_cli.bench.trace import TraceRequest


@dataclass(frozen=True)
class PlannedRequest:
    """One request. `prefix_ids` name stretches of the prompt that other requests with the same ids begin with too."""

    index: int
    num_prompt_tokens: int
    num_output_tokens: int
    arrival_seconds: float = 0.0
    prefix_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Workload:
    """Requests in order of arrival. `concurrency` None: open loop."""

    requests: tuple[PlannedRequest, ...]
    concurrency: int | None
    description: str

    @property
    def is_open_loop(self) -> bool:
        return self.concurrency is None


def closed_loop(num_requests: int, concurrency: int, num_prompt_tokens: int, num_output_tokens: int) -> Workload:
    """`num_requests` alike, `concurrency` at a time."""
    requests = (PlannedRequest(index, num_prompt_tokens, num_output_tokens) for index in range(num_requests))
    what = f"{num_requests} requests, {concurrency} at a time, {num_prompt_tokens} tokens in, {num_output_tokens} out"
    return Workload(tuple(requests), concurrency, what)


def poisson(
    num_requests: int, requests_per_second: float, num_prompt_tokens: int, num_output_tokens: int, seed: int
) -> Workload:
    """`num_requests` alike, at independent moments (exponential gaps), the first at once."""
    noise = random.Random(seed)
    arrivals = [0.0]
    while len(arrivals) < num_requests:
        arrivals.append(arrivals[-1] + noise.expovariate(requests_per_second))
    requests = (
        PlannedRequest(index, num_prompt_tokens, num_output_tokens, arrival)
        for index, arrival in enumerate(arrivals[:num_requests])
    )
    what = (
        f"{num_requests} requests at {requests_per_second:g}/s (Poisson), "
        f"{num_prompt_tokens} tokens in, {num_output_tokens} out"
    )
    return Workload(tuple(requests), None, what)


def replay(trace: Iterable[TraceRequest], *, name: str, speedup: float, max_context: int | None) -> Workload:
    """A trace at its own pace, or faster; requests longer than `max_context` in all are left out and counted."""
    fitting, num_all = [], 0
    for request in trace:
        num_all += 1
        if max_context is None or request.num_prompt_tokens + request.num_output_tokens <= max_context:
            fitting.append(request)
    left_out = f", {num_all - len(fitting)} longer than {max_context} tokens left out" if num_all > len(fitting) else ""
    pace = f" at {speedup:g}x its pace" if speedup != 1 else ""
    return Workload(_planned(fitting, speedup), None, f"{len(fitting)} requests of {name}{pace}{left_out}")


def _planned(trace: Sequence[TraceRequest], speedup: float) -> tuple[PlannedRequest, ...]:
    start = trace[0].arrival_seconds if trace else 0.0
    return tuple(
        PlannedRequest(
            index,
            max(1, request.num_prompt_tokens),
            max(1, request.num_output_tokens),
            (request.arrival_seconds - start) / speedup,
            request.prefix_ids,
        )
        for index, request in enumerate(trace)
    )
