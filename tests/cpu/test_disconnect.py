"""Clients that leave or read slowly, over real sockets: KV is freed, nobody else waits, nothing is lost."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from in_process import MODEL, ServedApp, running_app
from tidegate_engine.server.listening import HttpServer, bind, port_of

pytestmark = pytest.mark.anyio

SMALL_BUFFER_BYTES = 4096
STEP_SECONDS = 0.005  # slow enough that tokens are not merged before the writer blocks


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@dataclass
class Client:
    """One raw connection that has sent its request."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def leave(self) -> None:
        self.writer.transport.abort()

    async def read(self) -> bytes:
        """All that is still to come."""
        return await self.reader.read()


@dataclass
class Listening:
    """An app that listens, and the connections to it."""

    app: ServedApp
    port: int
    clients: list[Client] = field(default_factory=list)

    async def send(self, path: str, **fields) -> Client:
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER_BYTES)
        client.setblocking(False)
        await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", self.port))
        reader, writer = await asyncio.open_connection(sock=client, limit=SMALL_BUFFER_BYTES)
        body = json.dumps({"model": MODEL, **fields}).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        self.clients.append(Client(reader, writer))
        return self.clients[-1]

    async def is_running(self, number: int) -> None:
        await self.app.eventually(lambda: self.app.load().running == number)

    async def is_waiting(self, number: int) -> None:
        await self.app.eventually(lambda: self.app.load().waiting == number)


@asynccontextmanager
async def listening(**options) -> AsyncIterator[Listening]:
    async with running_app(**options) as served:
        bound = bind("127.0.0.1", 0)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL_BUFFER_BYTES)
        port = port_of(bound)
        server = HttpServer(served.exchanges, bound)
        await server.start()
        listening = Listening(served, port)
        yield listening
        for client in listening.clients:
            client.leave()
        await served.engine.stop()
        await server.stop()


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_a_client_that_leaves_while_its_request_runs_frees_its_kv(stream):
    async with listening() as server:
        with server.app.gate.closed():
            client = await server.send("/v1/completions", prompt="x" * 100, max_tokens=100, stream=stream)
            await server.is_running(1)
            await server.app.eventually(lambda: server.app.load().kv_blocks_used > 0)
            client.leave()
            await server.app.eventually(lambda: server.app.exchanges.num_left == 1)
        await server.app.eventually_idle()
        assert server.app.engine.counters.cancellations == 1
        assert server.app.load().completions == 0


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_a_client_that_leaves_while_it_waits_leaves_the_queue(stream):
    async with listening(slots=1) as server:
        with server.app.gate.closed():
            client = await server.send("/v1/completions", prompt="x", max_tokens=3)
            await server.is_running(1)
            waiting = await server.send("/v1/completions", prompt="x", max_tokens=3, stream=stream)
            await server.is_waiting(1)
            waiting.leave()
            await server.app.eventually(lambda: server.app.exchanges.num_left == 1)
        assert b"200 OK" in await client.read()
        await server.app.eventually_idle()
        assert server.app.load().completions == 1


async def test_a_client_that_leaves_in_the_middle_of_its_stream_frees_its_kv():
    async with listening() as server:
        client = await server.send("/v1/completions", prompt="x", max_tokens=200, stream=True, ignore_eos=True)
        server.app.gate.hold_after(steps=20)
        while b"data: " not in await client.reader.readline():
            pass
        await server.app.eventually(lambda: server.app.gate.num_held == 1)
        client.leave()
        await server.app.eventually(lambda: server.app.exchanges.num_left == 1)
        server.app.gate.release()
        await server.app.eventually_idle()
        assert server.app.engine.counters.cancellations == 1


async def test_a_slow_reader_delays_nobody_and_gets_everything():
    prompts = [[number] for number in range(1, 65)]
    async with listening(slots=64, step_seconds=STEP_SECONDS) as server:
        client = await server.send("/v1/completions", prompt=prompts, max_tokens=24, stream=True, ignore_eos=True)
        await server.app.eventually(lambda: server.app.load().completions == 64)  # although nothing was read
        assert server.app.exchanges.num_open == 1  # blocked in a write
        other = await server.send("/v1/completions", prompt="x", max_tokens=3)
        assert b"200 OK" in await other.read()
        stream = await client.read()
    texts = dict.fromkeys(range(64), "")
    for line in stream.splitlines():
        if line.startswith(b"data: {"):
            (choice,) = json.loads(line.removeprefix(b"data: "))["choices"]
            texts[choice["index"]] += choice["text"]
    assert {len(text) for text in texts.values()} == {24}
    assert b"data: [DONE]" in stream


async def test_a_reader_that_stalls_and_then_leaves_is_forgotten():
    prompts = [[number] for number in range(1, 65)]
    async with listening(slots=64, step_seconds=STEP_SECONDS) as server:
        client = await server.send("/v1/completions", prompt=prompts, max_tokens=24, stream=True, ignore_eos=True)
        await server.app.eventually(lambda: server.app.load().completions == 64)
        assert server.app.exchanges.num_open == 1  # blocked in a write
        client.leave()
        await server.app.eventually(lambda: server.app.exchanges.num_open == 0)
