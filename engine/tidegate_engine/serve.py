"""Composition root of an engine process: `serve(launch)` builds every part, runs it until told to stop, tells the exit.

    listening --model loaded, warm--> ready --SIGTERM--> lame duck --> draining --idle or grace over--> stopped
       |                                                 answers,      503 for new,     the rest ends in
       +--SIGTERM or failure--> stopped                  not ready     others finish    an error event

The admin port answers from the first moment; the API port refuses connections until the model is warm.
"""

import asyncio
import concurrent.futures
import gc
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn, TypeVar

from tidegate_core.launch import EngineLaunch, Switch
from tidegate_core.telemetry import StartReport
from tidegate_core.termination import TERMINATION_MESSAGE_PATH, ExitCode
from tidegate_engine.grammar.compiler import GrammarCompiler
from tidegate_engine.loop import STOP_SECONDS, EngineLoop, LoopSettings
from tidegate_engine.parallel.crew import Crew
from tidegate_engine.process import garbage
from tidegate_engine.process.age import process_age_seconds
from tidegate_engine.process.exits import EngineStuck, exit_of, write_termination_message
from tidegate_engine.process.lifecycle import StopSignals, log_event
from tidegate_engine.process.loading import EngineParts, check_model, crew_of, load_parts
from tidegate_engine.server.admin import Phase, ProcessState, create_admin_app
from tidegate_engine.server.app import create_app
from tidegate_engine.server.callers import Access
from tidegate_engine.server.front import Front
from tidegate_engine.server.key_file import KeyFile, watched
from tidegate_engine.server.listening import HttpServer, bind, port_of
from tidegate_engine.server.metrics import build_registry
from tidegate_engine.server.parsers.choice import answer_format

T = TypeVar("T")
logger = logging.getLogger(__name__)

# New requests are still answered for a moment after SIGTERM, while Services and gateways learn that we are not ready.
LAME_DUCK_SECONDS = 3.0
LAME_DUCK_SHARE = 0.1  # of the grace, where that is short
IDLE_CHECK_SECONDS = 0.1
ALIVE_CHECK_SECONDS = 1.0
TOKENIZER_THREADS = 2


def serve(launch: EngineLaunch, termination_path: Path = Path(TERMINATION_MESSAGE_PATH)) -> int:
    """Runs one engine process to its end; the exit code says why it ended. Blocks; installs signal handlers."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        asyncio.run(EngineProcess(launch).run())
    except Exception as error:
        ended = exit_of(error)
        if ended.code is ExitCode.INTERNAL:
            logger.critical("the engine process failed", exc_info=error)
        log_event("failed", exitCode=ended.code, **(ended.message.model_dump() if ended.message else {}))
        if ended.message is not None:
            write_termination_message(ended.message, termination_path)
        if isinstance(error, EngineStuck) or launch.tensor_parallel > 1:
            _abandon(ended.code)
        return ended.code
    if launch.tensor_parallel > 1:
        _abandon(ExitCode.OK)
    return ExitCode.OK


@dataclass
class EngineProcess:
    """One process's life. run() returns after an orderly stop and raises why there was none."""

    launch: EngineLaunch
    state: ProcessState = field(default_factory=ProcessState)
    signals: StopSignals = field(default_factory=StopSignals)
    started_seconds: float = field(default_factory=time.monotonic)
    crew: Crew | None = None  # of the other devices

    async def run(self) -> None:
        launch = self.launch
        self.signals.install()
        keys = None if launch.api_keys_file is None else KeyFile(Path(launch.api_keys_file))
        admin_socket = bind(launch.host, launch.admin_port, "--admin-port")
        api_socket = bind(launch.host, launch.port)
        admin = HttpServer(create_admin_app(self.state, launch.drain_token_sha256), admin_socket)
        await admin.start()
        ports = {"port": port_of(api_socket), "adminPort": port_of(admin_socket)}
        parts = await _unless(self.signals.requested, self._load(ports))
        if parts is None:
            log_event("stopped", reason="stopped while loading")
            _abandon(ExitCode.OK)
        try:
            async with watched(keys):
                access = Access(keys, is_fairness_header_trusted=launch.trust_fairness_header)
                await self._serve_parts(parts, access, api_socket)
        finally:
            await admin.stop()
        if self.crew:
            self.crew.close()
        log_event("stopped", uptimeSeconds=self._age())

    async def _load(self, ports: Mapping[str, int]) -> EngineParts:
        """Both steps read the model's volume, which may take for ever."""
        launch = self.launch
        await in_daemon_thread(lambda: check_model(launch))
        log_event("listening", **ports, model=launch.model, runner=launch.runner)
        self.crew = crew = crew_of(launch)
        if crew is None:
            return await in_daemon_thread(lambda: load_uncollected(launch))
        log_event("devices", pids=[os.getpid(), *crew.pids])
        return await _while_complete(crew, in_daemon_thread(lambda: load_uncollected(launch, crew)))

    async def _serve_parts(self, parts: EngineParts, access: Access, api_socket: socket.socket) -> None:
        engine = EngineLoop(
            runner=parts.runner, sizing=parts.sizing, settings=loop_settings(self.launch), counters=parts.counters
        )
        engine.start()
        with ThreadPoolExecutor(TOKENIZER_THREADS, thread_name_prefix="tokenizer") as executor:
            grammars = GrammarCompiler(parts.codec.vocabulary)
            # The table of a large vocabulary holds the interpreter for seconds: nobody's answer may wait for that.
            await asyncio.wrap_future(grammars.prepare())
            front = Front(
                engine,
                parts.codec,
                parts.model,
                executor,
                time.time,
                answers=answer_format(self.launch.tool_parser, self.launch.reasoning_parser, parts.codec.chat_template),
                grammars=grammars,
            )
            self.state.start = start_report(parts)
            self.state.registry = build_registry(engine, parts.model.names[0], access.keys, self.state.start)
            self.state.engine = engine
            api = HttpServer(create_app(front, self.state.registry, access), api_socket)
            await api.start()
            self.state.phase = Phase.SERVING
            log_event("ready", seconds=self._age(), models=parts.model.names, **parts.sizing.model_dump(by_alias=True))
            await until_stop(self.state, self.signals, self.crew)
            log_event("stopping", load=engine.load().model_dump(by_alias=True))
            await self._drain(engine)
            has_stopped = await engine.stop()
            await api.stop()
            grammars.close()
        if not has_stopped:
            raise EngineStuck(f"the engine was stopped in a step that did not end in {STOP_SECONDS:.0f} s")

    async def _drain(self, engine: EngineLoop) -> None:
        end = time.monotonic() + self.launch.drain_seconds
        self.state.phase = Phase.STOPPING
        if not engine.is_draining:
            await _wait(self.signals.insisted, min(LAME_DUCK_SECONDS, LAME_DUCK_SHARE * self.launch.drain_seconds))
            engine.drain()
        while not engine.is_idle and time.monotonic() < end and not self.signals.insisted.is_set():
            if self.crew:
                self.crew.check()
            await _wait(self.signals.insisted, IDLE_CHECK_SECONDS)
        left = engine.load()
        log_event("drained", unfinished=left.running + left.waiting, uptimeSeconds=self._age())

    def _age(self) -> float:
        return round(time.monotonic() - self.started_seconds, 3)


def start_report(parts: EngineParts) -> StartReport:
    """At the end of the start: whatever was not warm-up was loading."""
    warm_up_seconds = round(parts.warm_up_seconds, 3)
    load_seconds = max(0.0, round(process_age_seconds() - warm_up_seconds, 3))
    return StartReport(load_seconds=load_seconds, warm_up_seconds=warm_up_seconds)


async def until_stop(state: ProcessState, signals: StopSignals, crew: Crew | None = None) -> None:
    """Raises EngineStuck if the loop has stopped making progress, or a device's fault: only a new process helps."""
    while not signals.requested.is_set():
        if crew:
            crew.check()
        if not state.is_alive():
            raise EngineStuck(
                "the engine failed for good, or its step takes far longer than one can; its log says more"
            )
        await _wait(signals.requested, ALIVE_CHECK_SECONDS)


async def _while_complete(crew: Crew, work: Awaitable[T]) -> T:
    """The result of `work`, unless a device is lost meanwhile: then nobody may ever answer it. Raises its fault."""
    working = asyncio.ensure_future(work)
    while not working.done():
        crew.check()
        await asyncio.wait((working,), timeout=ALIVE_CHECK_SECONDS)
    return working.result()


def load_uncollected(launch: EngineLaunch, crew: Crew | None = None) -> EngineParts:
    """load_parts without garbage collection, which would look again and again through what is here to stay.

    Frozen afterwards: a full collection of a loaded engine would stop every request for a tenth of a second.
    """
    gc.disable()
    try:
        parts = load_parts(launch, crew)
        garbage.settle()
        return parts
    finally:
        gc.enable()


def loop_settings(launch: EngineLaunch) -> LoopSettings:
    return LoopSettings(
        max_queue=launch.max_queue,
        max_wait_seconds=launch.max_wait_seconds,
        max_queue_tokens=launch.max_queue_tokens,
        prompt_tokens=launch.prompt_tokens,
        output_tokens=launch.output_tokens,
        itl_seconds=launch.itl_ms / 1000,
        has_prefix_cache=launch.prefix_cache is Switch.ON,
    )


async def in_daemon_thread(work: Callable[[], T]) -> T:
    """Like asyncio.to_thread, in a thread that does not keep the process alive: loading cannot be interrupted."""
    outcome: concurrent.futures.Future[T] = concurrent.futures.Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:  # noqa: BLE001 - handed to the event loop, which raises it
            outcome.set_exception(error)

    threading.Thread(target=run, name="loading", daemon=True).start()
    return await asyncio.wrap_future(outcome)


async def _unless(event: asyncio.Event, work: Awaitable[T]) -> T | None:
    """The result of `work`, or None as soon as the event is set."""
    working = asyncio.ensure_future(work)
    interrupted = asyncio.create_task(event.wait())
    await asyncio.wait((working, interrupted), return_when=asyncio.FIRST_COMPLETED)
    interrupted.cancel()
    return working.result() if working.done() else None


async def _wait(event: asyncio.Event, seconds: float) -> None:
    """Until the event is set, at most so long."""
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return


def _abandon(code: ExitCode) -> NoReturn:
    """Ends the process although a thread is busy or stuck: an orderly exit would wait for it, perhaps for ever."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
