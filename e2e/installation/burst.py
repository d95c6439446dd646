"""Load on a pool through its Service: streams from clients that wait when they are told to, counted honestly."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass

from openai import APIStatusError, AsyncOpenAI, AsyncStream, DefaultAsyncHttpxClient
from openai.types import Completion

PROMPTS = (
    "The capital of France is",
    "Once upon a time there was a lighthouse keeper who",
    "Water boils at",
    "The first rule of gardening is",
)
LEAVE_CHECK_SECONDS = 0.2
MAX_RETRY_SECONDS = 3.0  # clients come back at least this often: a burst is impatient


@dataclass
class BurstResult:
    """What became of the burst's requests. A refusal says so before the first byte; a failure breaks a promise."""

    num_completed: int = 0
    num_refused: int = 0
    num_failed: int = 0
    num_tokens: int = 0
    fault: str = ""


class Burst:
    """`num_clients` closed-loop clients in a thread, from start() to finish(), which lets running streams end.

    With `asks_once` each client has one request and is content.
    """

    def __init__(self, url: str, model: str, *, num_clients: int, max_tokens: int, asks_once: bool = False) -> None:
        self.result = BurstResult()
        self._url, self._model, self._max_tokens = url, model, max_tokens
        self._num_clients, self._asks_once = num_clients, asks_once
        self._is_over = threading.Event()
        self._has_left = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="burst", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def finish(self, timeout_seconds: float = 180.0) -> BurstResult:
        self._is_over.set()
        self._thread.join(timeout_seconds)
        if self._thread.is_alive():
            self.result.num_failed += 1
            self.result.fault = f"streams had not ended {timeout_seconds:.0f} s after the burst"
        return self.result

    def leave(self) -> BurstResult:
        """The clients go at once, in the middle of what they read or wait for."""
        self._has_left.set()
        return self.finish()

    async def _run(self) -> None:
        clients = [asyncio.create_task(self._client(index)) for index in range(self._num_clients)]
        there = set(clients)
        while there:
            _, there = await asyncio.wait(there, timeout=LEAVE_CHECK_SECONDS)
            if self._has_left.is_set():
                for client in there:
                    client.cancel()
        for client in clients:
            if not client.cancelled():
                client.result()  # raises what a client did not expect

    async def _client(self, index: int) -> None:
        async with DefaultAsyncHttpxClient(trust_env=False) as transport:
            # A connection a request, as behind a load balancer; a kept-alive one would stay with its first replica.
            client = AsyncOpenAI(
                base_url=self._url, api_key="none", max_retries=0, timeout=180, http_client=transport,
                default_headers={"Connection": "close"},
            )  # fmt: skip
            number = index
            while number == index or not (self._is_over.is_set() or self._asks_once):
                await self._request(client, f"{PROMPTS[number % len(PROMPTS)]} ({number})", self._is_over.is_set)
                number += self._num_clients

    async def _request(self, client: AsyncOpenAI, prompt: str, is_over: Callable[[], bool]) -> None:
        try:
            stream = await client.completions.create(
                model=self._model, prompt=prompt, max_tokens=self._max_tokens, temperature=0, stream=True,
                extra_body={"ignore_eos": True},
            )  # fmt: skip
        except APIStatusError as error:
            self._note_refusal(error)
            seconds = min(float(error.response.headers.get("Retry-After", 1)), MAX_RETRY_SECONDS)
            await asyncio.sleep(0 if is_over() else seconds)
            return
        except Exception as error:  # noqa: BLE001 - whatever it was, the report must show it
            self._note_failure(f"not even refused: {error!r}")
            return
        await self._read(stream)

    async def _read(self, stream: AsyncStream[Completion]) -> None:
        finish = None
        try:
            async for chunk in stream:
                for choice in chunk.choices:
                    if choice.finish_reason:
                        finish = choice.finish_reason
                    self.result.num_tokens += bool(choice.text)
        except Exception as error:  # noqa: BLE001 - the same
            self._note_failure(f"an accepted stream broke: {error!r}")
            return
        if finish is None:
            self._note_failure("an accepted stream ended without a finish reason")
        else:
            self.result.num_completed += 1

    def _note_refusal(self, error: APIStatusError) -> None:
        if error.status_code == 503:
            self.result.num_refused += 1
        else:
            self._note_failure(f"answered {error.status_code}: {error.message}")

    def _note_failure(self, fault: str) -> None:
        self.result.num_failed += 1
        self.result.fault = fault
