"""The OpenAI app in the test's own event loop: real engine loop, simulated runner, a gate that holds or fails steps."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

import httpx
from fastapi import FastAPI

from text_runner import TextCodecOfBytes, TextRunner
from tidegate_core.telemetry import EngineSizing, LoadReport, StartReport
from tidegate_engine.counters import Counters
from tidegate_engine.grammar.compiler import GrammarCompiler
from tidegate_engine.loop import EngineLoop, LoopSettings
from tidegate_engine.runner import RowOutput, StepBatch
from tidegate_engine.scheduling.step_fit import StepTime
from tidegate_engine.server.app import OPEN_ACCESS, create_app
from tidegate_engine.server.callers import Access
from tidegate_engine.server.front import Backlog, Front, ServedModel, TextCodec
from tidegate_engine.server.metrics import build_registry
from tidegate_engine.server.parsers.choice import PLAIN_ANSWERS, AnswerFormat
from tidegate_engine.sim import SimRunner, SimSettings
from tidegate_engine.text.byte_codec import ByteCodec
from waiting import eventually_async

MODEL = "tide"
CONTEXT = 256
START = StartReport(load_seconds=2.5, warm_up_seconds=0.5)
BLOCK_SIZE = 16
POISON = 255  # no UTF-8 text has this byte, and the tests' prompts have it only on purpose


class Gate:
    """A runner's door: while it is closed no step ends, and a prompt that begins with poison raises."""

    def __init__(self, runner: SimRunner | TextRunner) -> None:
        self.num_blocks, self.block_size = runner.num_blocks, runner.block_size
        self.vocab_size, self.kv_windows = runner.vocab_size, runner.kv_windows
        self._runner = runner
        self._steps_left = -1
        self.batch = StepBatch(())  # the last one asked for
        self.is_broken = False
        self.num_held = 0
        self._open = threading.Event()
        self._open.set()

    def run(self, batch: StepBatch) -> tuple[RowOutput | None, ...]:
        self.batch = batch
        if self._steps_left == 0:
            self._open.clear()
        self._steps_left -= 1
        self.num_held = 0 if self._open.is_set() else 1
        self._open.wait()
        if self.is_broken:
            raise RuntimeError("injected: the device is lost")
        if any(row.start == 0 and row.token_ids[0] == POISON for row in batch.rows):
            raise RuntimeError("injected: this prompt makes the runner raise")
        return self._runner.run(batch)

    def hold_after(self, *, steps: int) -> None:
        self._steps_left = steps

    def release(self) -> None:
        self._open.set()

    @contextmanager
    def closed(self) -> Iterator[None]:
        self._open.clear()
        try:
            yield
        finally:
            self._open.set()


@dataclass
class Exchanges:
    """The app, with what is said on its door noted: the in-process transport shows a body only when it is complete."""

    app: FastAPI
    body_parts: list[bytes] = field(default_factory=list)
    num_open: int = 0
    num_left: int = 0  # clients that were seen leaving

    async def __call__(self, scope, receive, send) -> None:
        async def noting_receive():
            message = await receive()
            self.num_left += message["type"] == "http.disconnect"
            return message

        async def noting_send(message) -> None:
            if message["type"] == "http.response.body":
                self.body_parts.append(message["body"])
            await send(message)

        self.num_open += 1
        try:
            await self.app(scope, noting_receive, noting_send)
        finally:
            self.num_open -= 1


@dataclass
class ServedApp:
    client: httpx.AsyncClient
    engine: EngineLoop
    gate: Gate
    exchanges: Exchanges

    def load(self) -> LoadReport:
        return self.engine.load()

    def background(self, path: str, body: dict) -> asyncio.Task[httpx.Response]:
        return asyncio.create_task(self.client.post(path, json=body))

    async def eventually(self, predicate: Callable[[], bool | Awaitable[bool]]) -> None:
        await eventually_async(predicate, timeout_seconds=10)

    async def eventually_idle(self) -> None:
        """Nothing runs or waits and no KV block is held."""
        await self.eventually(lambda: self.engine.is_idle and self.load().kv_blocks_used == 0)


@asynccontextmanager
async def running_app(
    *,
    slots: int = 8,
    max_queue: int = 64,
    max_queue_tokens: int | None = None,
    ping_seconds: float = 15.0,
    answer_tokens: int | None = None,
    step_seconds: float = 0.0,
    codec: TextCodec | None = None,
    usual_tokens: int = 32,
    access: Access = OPEN_ACCESS,
    answer: str | None = None,
    answers: AnswerFormat = PLAIN_ANSWERS,
    max_backlog: int = 128,
    context: int = CONTEXT,
) -> AsyncIterator[ServedApp]:
    counters = Counters()
    num_blocks = 8 * context // BLOCK_SIZE
    step_time = StepTime(step_seconds, 0, 0)
    settings = SimSettings(num_blocks=num_blocks, answer_tokens=answer_tokens, step_time=step_time)
    gate = Gate(
        SimRunner(settings, counters=counters) if answer is None else TextRunner(answer, num_blocks, BLOCK_SIZE)
    )
    grammars = GrammarCompiler((codec or ByteCodec()).vocabulary)
    engine = EngineLoop(
        runner=gate,
        sizing=sizing(gate, slots, context),
        settings=LoopSettings(
            max_queue=max_queue,
            max_queue_tokens=max_queue_tokens,
            prompt_tokens=usual_tokens // 2,
            output_tokens=usual_tokens // 2,
        ),
        counters=counters,
    )
    engine.start()
    model = ServedModel((MODEL, "alias/of-it"), context, gate.vocab_size, 16, 1, runner="sim", is_simulation=True)
    with ThreadPoolExecutor(1) as executor:
        if answer is not None and codec is None:
            codec = TextCodecOfBytes()
        front = Front(
            engine,
            codec or ByteCodec(),
            model,
            executor,
            time.time,
            ping_seconds,
            answers=answers,
            grammars=grammars,
            backlog=Backlog(max_backlog),
        )
        app = create_app(front, build_registry(engine, MODEL, access.keys, START), access)
        exchanges = Exchanges(app)
        transport = httpx.ASGITransport(exchanges, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://engine", timeout=30) as client:
            yield ServedApp(client, engine, gate, exchanges)
        await engine.stop()
        grammars.close()


def sizing(runner: Gate, slots: int, context: int) -> EngineSizing:
    return EngineSizing(
        context=context,
        slots=slots,
        kv_blocks_total=runner.num_blocks,
        block_size=runner.block_size,
        kv_bytes=0,
        weight_bytes=0,
        resident_bytes=0,
    )
