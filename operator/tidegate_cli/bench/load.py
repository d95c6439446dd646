"""Sends a workload and collects outcomes. Every request gets one: what is not finished by the deadline has failed.

closed loop:  client 1  |--- request ---||--- request ---|         a rejected client comes back when it was told to
              client 2  |------ request ------||--- request ---|
open loop:    |-- request --|    at the workload's own moments, however many are under way already
                |------ request ------|
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace

from tidegate_cli.bench.exchange import Exchange
from tidegate_cli.bench.outcome import Outcome
from tidegate_cli.bench.prompts import Lengths, prompt_text
from tidegate_cli.bench.workload import PlannedRequest, Workload

MAX_BACK_OFF_SECONDS = 10.0
DEFAULT_BACK_OFF_SECONDS = 1.0

Report = Callable[[Outcome], None]


class Load:
    """One run. `report` is called with each outcome as it comes."""

    def __init__(
        self, exchange: Exchange, lengths: Lengths, *, seed: int, clock: Callable[[], float], report: Report
    ) -> None:
        self._exchange = exchange
        self._lengths = lengths
        self._seed = seed
        self._clock = clock
        self._report = report
        self._outcomes: dict[int, Outcome] = {}

    async def run(self, workload: Workload) -> tuple[Outcome, ...]:
        """Outcomes in the order of the requests."""
        if workload.concurrency is None:
            await self._open(workload.requests)
        else:
            await self._closed(iter(workload.requests), workload.concurrency)
        return tuple(self._outcomes[request.index] for request in workload.requests)

    async def _open(self, requests: tuple[PlannedRequest, ...]) -> None:
        async with asyncio.TaskGroup() as group:
            for request in requests:
                prompt = prompt_text(request, self._lengths, self._seed)  # made before its moment, not at it
                await asyncio.sleep(max(0.0, request.arrival_seconds - self._clock()))
                group.create_task(self._ask(request, prompt))

    async def _closed(self, requests: Iterator[PlannedRequest], concurrency: int) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(self._client(requests))

    async def _client(self, requests: Iterator[PlannedRequest]) -> None:
        for request in requests:
            outcome = await self._ask(request, prompt_text(request, self._lengths, self._seed))
            if outcome.status in {429, 503}:
                told = outcome.retry_after_seconds
                await asyncio.sleep(min(DEFAULT_BACK_OFF_SECONDS if told is None else told, MAX_BACK_OFF_SECONDS))

    async def _ask(self, request: PlannedRequest, prompt: str) -> Outcome:
        outcome = await self._exchange.ask(prompt, request.num_output_tokens)
        if not outcome.num_prompt_tokens:  # refused, or the server sends no usage
            outcome = replace(outcome, num_prompt_tokens=request.num_prompt_tokens)
        self._outcomes[request.index] = outcome
        self._report(outcome)
        return outcome
