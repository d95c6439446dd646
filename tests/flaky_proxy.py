"""A proxy in front of the API server that answers with faults, cuts watches, and forgets tokens: plain HTTP, seeded."""

import asyncio
import json
import random
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from aiohttp import web

READ_FAULTS = (429, 500, 503, 504)
WRITE_FAULTS = (409, *READ_FAULTS)
TOO_OLD = json.dumps({"type": "ERROR", "object": {
    "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Expired", "code": 410,
    "message": "too old resource version",
}})  # fmt: skip
_HOP_BY_HOP = {"transfer-encoding", "content-length", "connection", "content-encoding", "host"}


@dataclass
class FlakyProxy:
    """Change the shares at any time; 0 everywhere passes everything on."""

    server: str
    tls: ssl.SSLContext
    rng: random.Random
    fault_share: float = 0.0  # answered with a fault, nothing passed on
    lost_share: float = 0.0  # passed on, but the connection breaks before the answer
    cut_share: float = 0.0  # of the chunks of a watch: after it the watch breaks
    status_for_all: int | None = None  # nothing is passed on: 401 as if every token had expired
    is_silent: bool = False  # watches stay open and tell nothing
    is_history_lost: bool = False  # a watch that begins is told at once that it is too far behind
    delay_seconds: float = 0.0  # of every request but watches
    num_faults: int = 0
    port: int = 0
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    _session: aiohttp.ClientSession | None = None
    _watches: dict[int, web.Request] = field(default_factory=dict)

    def cut_watches(self) -> None:
        """All there are."""
        for request in list(self._watches.values()):
            self.loop.call_soon_threadsafe(_break, request)

    async def start(self) -> web.AppRunner:
        self._session = aiohttp.ClientSession(auto_decompress=False)
        app = web.Application(client_max_size=2**24)
        app.router.add_route("*", "/{path:.*}", self.pass_on)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.port = runner.addresses[0][1]
        return runner

    async def stop(self, runner: web.AppRunner) -> None:
        assert self._session is not None
        await self._session.close()
        await runner.cleanup()
        left = asyncio.all_tasks() - {asyncio.current_task()}  # watches that nobody reads any more
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def pass_on(self, request: web.Request) -> web.StreamResponse:
        if self.status_for_all:
            return self._fault(self.status_for_all)
        if self.rng.random() < self.fault_share:
            return self._fault(self.rng.choice(READ_FAULTS if request.method == "GET" else WRITE_FAULTS))
        is_watch = "watch=true" in request.query_string
        if is_watch and self.is_history_lost:
            self.num_faults += 1
            return web.Response(text=TOO_OLD, content_type="application/json")
        await asyncio.sleep(0 if is_watch else self.delay_seconds)
        assert self._session is not None
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP_BY_HOP}
        body, url = await request.read(), self.server + request.raw_path
        upstream = self._session.request(request.method, url, headers=headers, data=body or None, ssl=self.tls)
        async with upstream as answer:
            if self.rng.random() < self.lost_share:
                self.num_faults += 1
                await answer.read()
                _break(request)
                return web.Response()
            kept = {name: value for name, value in answer.headers.items() if name.lower() not in _HOP_BY_HOP}
            response = web.StreamResponse(status=answer.status, headers=kept)
            await response.prepare(request)
            await self._pour(request, answer, response)
        return response

    async def _pour(self, request: web.Request, answer: aiohttp.ClientResponse, response: web.StreamResponse) -> None:
        is_watch = "watch=true" in request.query_string
        if is_watch:
            self._watches[id(request)] = request
        try:
            async for chunk in answer.content.iter_any():
                if not (is_watch and self.is_silent):
                    await response.write(chunk)
                if is_watch and self.rng.random() < self.cut_share:
                    self.num_faults += 1
                    _break(request)
                    break
        finally:
            self._watches.pop(id(request), None)

    def _fault(self, status: int) -> web.Response:
        self.num_faults += 1
        body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status, "message": "injected"}
        return web.json_response(body, status=status, headers={"Retry-After": "1"} if status == 429 else {})


def _break(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.close()


@contextmanager
def flaky_proxy(kubeconfig: Path, seed: int) -> Iterator[FlakyProxy]:
    """In front of that kubeconfig's server, which is rewritten to go through it."""
    content: dict[str, Any] = yaml.safe_load(kubeconfig.read_text())
    cluster = content["clusters"][0]["cluster"]
    authority = cluster.pop("certificate-authority", None)
    data = cluster.pop("certificate-authority-data", None)
    tls = ssl.create_default_context(cafile=authority, cadata=_decoded(data) if data else None)
    proxy = FlakyProxy(cluster["server"], tls, random.Random(seed))
    thread = threading.Thread(target=proxy.loop.run_forever, name="flaky proxy", daemon=True)
    thread.start()
    runner = asyncio.run_coroutine_threadsafe(proxy.start(), proxy.loop).result(10)
    cluster["server"] = f"http://127.0.0.1:{proxy.port}"
    kubeconfig.write_text(yaml.safe_dump(content))
    try:
        yield proxy
    finally:
        asyncio.run_coroutine_threadsafe(proxy.stop(runner), proxy.loop).result(20)
        proxy.loop.call_soon_threadsafe(proxy.loop.stop)
        thread.join(10)
        proxy.loop.close()


def _decoded(data: str) -> str:
    import base64

    return base64.b64decode(data).decode()
