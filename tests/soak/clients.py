"""Clients of every kind, good and bad: each asks once, in its own way, and judges what it was answered.

A client that was accepted (200) and stays must get a whole answer; one that is refused must be told why and when to
come back. Greedy answers to the same question must be the same, whatever ran beside them and however often a spot
request was preempted: the engine is started deterministic.
"""

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import aiohttp

MODEL = "soaked"
NUM_QUESTIONS = 40
SLOW_READ_SECONDS = 0.05
MAX_BACK_OFF_SECONDS = 2  # impatient: the queue shall be full now and then
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "ok": {"type": "boolean"}},
    "required": ["name", "ok"],
    "additionalProperties": False,
}
BAD_BODIES: tuple[tuple[int, bytes], ...] = (
    (400, b"{"),
    (400, b"[]"),
    (400, b'{"model": "soaked"}'),
    (400, b'{"model": "soaked", "prompt": "x", "max_tokens": -1}'),
    (400, b'{"model": "soaked", "prompt": "x", "unheard_of": 1}'),
    (400, b'{"model": "soaked", "prompt": [999999]}'),
    (400, b'{"model": "soaked", "prompt": "' + b"too long " * 1000 + b'"}'),
    (400, b'{"model": "soaked", "prompt": "x", "structured_outputs": {"regex": "("}}'),
    (404, b'{"model": "other", "prompt": "x"}'),
)


@dataclass
class Judgement:
    """What has happened so far. `faults` must stay empty."""

    seen: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    answers: dict[str, str] = field(default_factory=dict)

    def fault(self, what: str) -> None:
        self.faults.append(what)

    def same_answer(self, question: str, answer: str) -> None:
        first = self.answers.setdefault(question, answer)
        if first != answer:
            self.fault(f"two answers to {question!r}: {first!r} and {answer!r}")


class Clients:
    """Picks a kind of client at random (seeded), lets it ask, and notes the outcome."""

    def __init__(self, session: aiohttp.ClientSession, url: str, judgement: Judgement, seed: int) -> None:
        self._session = session
        self._url = url
        self._judgement = judgement
        self._random = random.Random(seed)
        self._kinds: dict[Callable[[], Awaitable[None]], int] = {
            self._streams: 30,
            self._streams_spot: 30,
            self._asks_whole: 6,
            self._asks_twice_at_once: 4,
            self._asks_for_json: 6,
            self._asks_for_logprobs: 4,
            self._reads_slowly: 3,
            self._leaves_mid_stream: 8,
            self._leaves_at_once: 5,
            self._sends_nonsense: 10,
            self._sends_half_a_body: 2,
        }

    async def ask(self) -> None:
        (kind,) = self._random.choices(list(self._kinds), list(self._kinds.values()))
        name = kind.__name__.strip("_")
        try:
            async with asyncio.timeout(120):
                await kind()
        except Refused as refused:
            self._judgement.seen[f"{name}: refused"] += 1
            await asyncio.sleep(min(refused.retry_after_seconds, MAX_BACK_OFF_SECONDS))
        except (aiohttp.ClientError, TimeoutError, AssertionError, KeyError, ValueError) as error:
            self._judgement.fault(f"{name}: {error!r}")
        else:
            self._judgement.seen[name] += 1

    async def _streams(self, **more: object) -> None:
        number = self._random.randrange(NUM_QUESTIONS)
        body = {**self._question(number), **more, "stream": True}
        text, finish = "", None
        async for chunk in self._events(body):
            text += chunk["choices"][0]["text"]
            finish = chunk["choices"][0]["finish_reason"] or finish
        assert finish in {"stop", "length"}, f"an accepted stream ended with {finish}"
        self._judgement.same_answer(str(number), text)

    async def _streams_spot(self) -> None:
        await self._streams(service_tier="flex")

    async def _asks_whole(self) -> None:
        number = self._random.randrange(NUM_QUESTIONS)
        answer = await self._whole("/v1/completions", self._question(number))
        self._judgement.same_answer(str(number), answer["choices"][0]["text"])

    async def _asks_twice_at_once(self) -> None:
        number = self._random.randrange(NUM_QUESTIONS)
        answer = await self._whole("/v1/completions", {**self._question(number), "n": 2})
        for choice in answer["choices"]:
            self._judgement.same_answer(str(number), choice["text"])

    async def _asks_for_json(self) -> None:
        body = {"model": MODEL, "messages": [{"role": "user", "content": f"Who? {self._random.random()}"}]}
        form = {"type": "json_schema", "json_schema": {"name": "who", "schema": SCHEMA, "strict": True}}
        answer = await self._whole("/v1/chat/completions", {**body, "response_format": form, "max_tokens": 60})
        choice = answer["choices"][0]
        if choice["finish_reason"] == "stop":
            assert set(json.loads(choice["message"]["content"])) == {"name", "ok"}, choice

    async def _asks_for_logprobs(self) -> None:
        answer = await self._whole("/v1/completions", {**self._question(1), "max_tokens": 6, "logprobs": 3})
        assert len(answer["choices"][0]["logprobs"]["token_logprobs"]) == answer["usage"]["completion_tokens"], answer

    async def _reads_slowly(self) -> None:
        async for _ in self._events({**self._question(2), "stream": True}):
            await asyncio.sleep(SLOW_READ_SECONDS)

    async def _leaves_mid_stream(self) -> None:
        stop_after = self._random.randrange(1, 20)
        num_read = 0
        events = self._events({**self._question(3), "max_tokens": 200, "stream": True})
        async for _ in events:
            num_read += 1
            if num_read == stop_after:
                break
        await events.aclose()

    async def _leaves_at_once(self) -> None:
        task = asyncio.create_task(self._whole("/v1/completions", {**self._question(4), "max_tokens": 200}))
        await asyncio.wait([task], timeout=self._random.random() * 0.2)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def _sends_nonsense(self) -> None:
        status, body = self._random.choice(BAD_BODIES)
        async with self._session.post(f"{self._url}/v1/completions", data=body) as response:
            document = await response.json()
            if response.status != 503:
                assert response.status == status, f"{body[:60]!r} was answered {response.status}: {document}"
            assert document["error"]["message"], document

    async def _sends_half_a_body(self) -> None:
        host, port = self._url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
        await writer.drain()
        writer.close()

    def _question(self, number: int) -> dict[str, object]:
        prompt = f"{'shared beginning ' * (number % 4)}question {number}: " + "why " * (number % 30)
        return {"model": MODEL, "prompt": prompt, "max_tokens": 8 + 3 * number, "temperature": 0, "ignore_eos": True}

    async def _whole(self, path: str, body: dict[str, object]) -> dict:
        async with self._session.post(self._url + path, json=body) as response:
            await _check_status(response)
            return await response.json()

    async def _events(self, body: dict[str, object]) -> AsyncIterator[dict]:
        async with self._session.post(f"{self._url}/v1/completions", json=body) as response:
            await _check_status(response)
            is_done = False
            async for line in response.content:
                data = line.removeprefix(b"data:").strip()
                if data == b"[DONE]":
                    is_done = True
                elif line.startswith(b"data:"):
                    chunk = json.loads(data)
                    assert "error" not in chunk, f"an accepted stream failed: {chunk}"
                    yield chunk
            assert is_done, "an accepted stream ended without [DONE]"


class Refused(Exception):
    """For lack of capacity, politely."""

    def __init__(self, retry_after_seconds: int) -> None:
        super().__init__(f"come back in {retry_after_seconds} s")
        self.retry_after_seconds = retry_after_seconds


async def _check_status(response: aiohttp.ClientResponse) -> None:
    if response.status in {429, 503}:
        retry_after_seconds = int(response.headers["retry-after"])
        assert retry_after_seconds >= 1
        raise Refused(retry_after_seconds)
    assert response.status == 200, f"{response.status}: {await response.text()}"
