"""Connections that cost: heads and bodies that come too slowly, readers that stall, bytes that are not HTTP."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from starlette.requests import Request

from in_process import MODEL, ServedApp, running_app
from tidegate_engine.server.bodies import BodyLimits, read_body
from tidegate_engine.server.connections import MAX_HEAD_BYTES, Connection
from tidegate_engine.server.errors import ApiError
from tidegate_engine.server.listening import HttpServer, bind, port_of
from tidegate_engine.server.schemas.tokenize import DetokenizeRequest

pytestmark = pytest.mark.anyio

SMALL_BUFFER_BYTES = 4096


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Impatient(Connection):
    """The same rules, soon."""

    head_seconds = 0.2
    stall_seconds = 0.2


@asynccontextmanager
async def listening(**options) -> AsyncIterator[tuple[ServedApp, int]]:
    async with running_app(**options) as served:
        bound = bind("127.0.0.1", 0)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL_BUFFER_BYTES)
        server = HttpServer(served.exchanges, bound, Impatient)
        await server.start()
        yield served, port_of(bound)
        await served.engine.stop()
        await server.stop()


async def connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER_BYTES)
    client.setblocking(False)
    await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", port))
    return await asyncio.open_connection(sock=client, limit=SMALL_BUFFER_BYTES)


async def send(port: int, path: str, **fields) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await connect(port)
    body = json.dumps({"model": MODEL, **fields}).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()
    return reader, writer


async def is_closed(reader: asyncio.StreamReader) -> bool:
    """Whether the server ends the connection, in order or not, within a generous time."""
    try:
        while await asyncio.wait_for(reader.read(65536), 10):
            pass
    except ConnectionError:
        pass
    return True


async def test_a_reader_that_stalls_is_cut_off_and_its_kv_is_freed():
    prompts = [[number] for number in range(1, 65)]
    async with listening(slots=64, step_seconds=0.005) as (served, port):
        reader, writer = await send(
            port, "/v1/completions", prompt=prompts, max_tokens=180, stream=True, ignore_eos=True
        )
        await served.eventually(lambda: served.load().running > 0)
        await served.eventually(lambda: served.exchanges.num_open == 0)  # nothing is ever read
        await served.eventually_idle()
        assert served.engine.counters.cancellations > 0
        writer.transport.abort()
        assert reader is not None


@pytest.mark.parametrize("start", [b"", b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"], ids=["nothing", "half"])
async def test_a_head_that_does_not_come_to_its_end_is_not_waited_for(start):
    async with listening() as (_, port):
        reader, writer = await connect(port)
        writer.write(start)
        assert await is_closed(reader)
        writer.close()


async def test_a_second_request_on_a_connection_has_a_deadline_of_its_own():
    async with listening() as (_, port):
        reader, writer = await send(port, "/tokenize", prompt="x")
        assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
        writer.write(b"GET /v1/mod")
        assert await is_closed(reader)
        writer.close()


async def test_a_request_that_takes_longer_than_its_head_may_is_answered():
    async with listening() as (served, port):
        with served.gate.closed():
            reader, writer = await send(port, "/v1/completions", prompt="x", max_tokens=2)
            await served.eventually(lambda: served.gate.num_held == 1)
            waiting = asyncio.create_task(reader.readuntil(b"\r\n\r\n"))
            await asyncio.wait([waiting], timeout=3 * Impatient.head_seconds)
            assert not waiting.done()
        assert b"200 OK" in await waiting
        writer.close()


@pytest.mark.parametrize(
    "data",
    [b"\x16\x03\x01 this is TLS\r\n\r\n", b"GET / HTTP/1.1\r\nx: " + b"y" * (MAX_HEAD_BYTES + 1)],
    ids=["not HTTP", "a head without end"],
)
async def test_what_is_not_http_is_told_so_in_openais_shape(data):
    async with listening() as (_, port):
        reader, writer = await connect(port)
        writer.write(data)
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
    assert b"400" in head
    assert json.loads(body)["error"]["code"] == "invalid_http"


def upload(*parts: bytes) -> Request:
    """A request whose body stops coming after these parts, its connection open."""
    messages = [{"type": "http.request", "body": part, "more_body": True} for part in parts]

    async def receive():
        if not messages:
            await asyncio.Event().wait()
        return messages.pop(0)

    return Request({"type": "http", "headers": [], "method": "POST"}, receive)


async def endless():
    return {"type": "http.request", "body": b" ", "more_body": True}


async def test_an_upload_that_stops_is_told_what_came_of_it():
    with pytest.raises(ApiError, match="after 5 bytes") as raised:
        await read_body(upload(b'{"mo', b"d"), DetokenizeRequest, BodyLimits(1000, idle_seconds=0.05))
    assert (raised.value.status, raised.value.code) == (408, "request_timeout")
    assert raised.value.headers["connection"] == "close"


async def test_an_upload_that_drips_for_ever_is_cut_off():
    async def drip():
        await asyncio.sleep(0.01)
        return await endless()

    request = Request({"type": "http", "headers": [], "method": "POST"}, drip)
    with pytest.raises(ApiError, match=r"longer than 0\.1 s") as raised:
        await read_body(request, DetokenizeRequest, BodyLimits(10**9, idle_seconds=5, total_seconds=0.1))
    assert raised.value.status == 408


async def test_answers_carry_the_request_id_that_the_client_sent_or_one_of_ours():
    async with running_app() as served:
        given = await served.client.get("/v1/models", headers={"X-Request-Id": "abc-7"})
        absent = await served.client.get("/v1/nothing")
        unusable = await served.client.get("/v1/models", headers={"X-Request-Id": "x" * 200})
    assert given.headers["x-request-id"] == "abc-7"
    assert len(absent.headers["x-request-id"]) == len(unusable.headers["x-request-id"]) == 32


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("HEAD", "/v1/models", 200),
        ("HEAD", "/metrics", 200),
        ("OPTIONS", "/v1/chat/completions", 405),
        ("DELETE", "/v1/models", 405),
        ("GET", "/v1/chat/completions", 405),
        ("GET", "/nothing", 404),
    ],
)
async def test_other_methods_and_paths_are_answered_as_http_wants(method, path, status):
    async with running_app() as served:
        response = await served.client.request(method, path)
    assert response.status_code == status
    assert ("allow" in response.headers) == (status == 405)
    if method != "HEAD":
        assert f"{method} {path}" in response.json()["error"]["message"]
