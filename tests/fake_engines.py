"""Engines without models: /load, /drain and /undrain on loopback addresses of their own, set by hand.

Everything runs in one thread; tests change an engine's load from theirs.
"""

import asyncio
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from aiohttp import web

from pools import IDLE
from tidegate_core.telemetry import ADMIN_PORT, LoadReport


@dataclass
class FakeEngine:
    """One engine; `report` is what it says."""

    ip: str
    token: str
    report: LoadReport = IDLE
    is_ready: bool = True
    is_answering: bool = True
    body: str | None = None  # said instead of the report
    num_unauthorised: int = 0

    def set_load(self, **changes: object) -> None:
        """Fields of the report by name."""
        self.report = self.report.model_copy(update=changes)

    def answer_load(self, _: web.Request) -> web.Response:
        if not self.is_answering:
            return web.Response(status=500)
        return web.json_response(text=self.report.model_dump_json(by_alias=True) if self.body is None else self.body)

    def answer_drain(self, request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            self.num_unauthorised += 1
            return web.Response(status=401)
        self.set_load(draining=request.path == "/drain")
        return web.Response(status=202)


@dataclass
class FakeEngines:
    """All engines of a test, by pod name."""

    token: str
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    by_pod: dict[str, FakeEngine] = field(default_factory=dict)
    _runners: list[web.AppRunner] = field(default_factory=list)

    def start(self, pod: str) -> FakeEngine:
        """An engine on a free loopback address."""
        engine = FakeEngine(_free_address(), self.token)
        asyncio.run_coroutine_threadsafe(self._serve(engine), self.loop).result(10)
        self.by_pod[pod] = engine
        return engine

    async def _serve(self, engine: FakeEngine) -> None:
        async def load(request: web.Request) -> web.Response:
            return engine.answer_load(request)

        async def drain(request: web.Request) -> web.Response:
            return engine.answer_drain(request)

        app = web.Application()
        app.add_routes([web.get("/load", load), web.post("/drain", drain), web.post("/undrain", drain)])
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, engine.ip, ADMIN_PORT).start()
        self._runners.append(runner)

    async def close(self) -> None:
        for runner in self._runners:
            await runner.cleanup()


@contextmanager
def fake_engines(token: str) -> Iterator[FakeEngines]:
    engines = FakeEngines(token)
    thread = threading.Thread(target=engines.loop.run_forever, name="fake engines", daemon=True)
    thread.start()
    try:
        yield engines
    finally:
        asyncio.run_coroutine_threadsafe(engines.close(), engines.loop).result(10)
        engines.loop.call_soon_threadsafe(engines.loop.stop)
        thread.join(10)
        engines.loop.close()


def _free_address() -> str:
    """All of 127/8 is local; a random one is not in use by a test beside us."""
    first, second, third = (random.randint(2, 254) for _ in range(3))
    return f"127.{first}.{second}.{third}"
