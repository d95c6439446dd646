"""One request on the wire, timed: sent, each piece of text, its end. The only module here that speaks HTTP."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace

import aiohttp

from tidegate_cli.bench.endpoint import Chunk, Endpoint, parse_event
from tidegate_cli.bench.outcome import Ending, Outcome

BACK_LATER = (429, 503)
FAULT_CHARACTERS = 200
DONE = b"[DONE]"


@dataclass
class _Reading:
    """What a stream has said so far."""

    event_seconds: list[float] = field(default_factory=list)
    last: Chunk = field(default_factory=Chunk)
    is_closed: bool = False
    is_done: bool = False


class Exchange:
    """Sends requests to one endpoint; clock() are seconds since the run began."""

    def __init__(self, session: aiohttp.ClientSession, endpoint: Endpoint, clock: Callable[[], float]) -> None:
        self._session = session
        self._endpoint = endpoint
        self._clock = clock

    async def ask(self, prompt: str, num_output_tokens: int) -> Outcome:
        """Never raises for what a server or a network does: that is the measurement."""
        sent = self._clock()
        reading = _Reading()
        failed = Outcome(Ending.FAILED, sent, sent)
        try:
            body = self._endpoint.body(prompt, num_output_tokens)
            async with self._session.post(self._endpoint.path, json=body, headers=self._endpoint.headers) as response:
                if response.status != 200:
                    return await self._refusal(response, sent)
                await self._read(response, reading)
        except (aiohttp.ClientError, TimeoutError, asyncio.IncompleteReadError, ValueError, TypeError) as error:
            fault = f"{type(error).__name__}: {error}"[:FAULT_CHARACTERS]
            return replace(self._partial(failed, reading), fault=fault)
        if fault := _incomplete(reading):
            return replace(self._partial(failed, reading), status=200, fault=fault[:FAULT_CHARACTERS])
        return self._partial(replace(failed, ending=Ending.COMPLETED, status=200), reading)

    def _partial(self, outcome: Outcome, reading: _Reading) -> Outcome:
        num_output = reading.last.num_output_tokens
        return replace(
            outcome,
            ended_seconds=self._clock(),
            event_seconds=tuple(reading.event_seconds),
            num_prompt_tokens=reading.last.num_prompt_tokens or 0,
            num_output_tokens=len(reading.event_seconds) if num_output is None else num_output,
            num_cached_tokens=reading.last.num_cached_tokens,
        )

    async def _refusal(self, response: aiohttp.ClientResponse, sent: float) -> Outcome:
        text = (await response.text())[:FAULT_CHARACTERS]
        is_rejected = response.status in BACK_LATER
        return Outcome(
            Ending.REJECTED if is_rejected else Ending.FAILED,
            sent,
            self._clock(),
            status=response.status,
            retry_after_seconds=_seconds(response.headers.get("retry-after")),
            fault=f"{response.status}: {text}",
        )

    async def _read(self, response: aiohttp.ClientResponse, reading: _Reading) -> None:
        async for data in _events(response.content):
            if data == DONE:
                reading.is_done = True
                continue
            chunk = parse_event(data)
            if chunk.has_text:
                reading.event_seconds.append(self._clock())
            reading.is_closed |= chunk.is_closing
            if chunk.error or chunk.num_output_tokens is not None:
                reading.last = chunk
            if chunk.error:
                return


def _incomplete(reading: _Reading) -> str:
    if reading.last.error:
        return f"an accepted stream ended with an error: {reading.last.error}"
    if not reading.is_closed:
        return "an accepted stream ended without a finish reason"
    return "" if reading.is_done else "an accepted stream ended without [DONE]"


async def _events(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """The data of server-sent events; comments are passed over. An event of a completion is one line."""
    async for line in content:
        if line.startswith(b"data:"):
            yield line[5:].strip()


def _seconds(header: str | None) -> float | None:
    try:
        return None if header is None else max(0.0, float(header))
    except ValueError:  # HTTP also allows a date, which no server of models sends
        return None
