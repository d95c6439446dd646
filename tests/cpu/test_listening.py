"""What every connection to an engine's ports is like, whatever is said on it."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tidegate_engine.process.exits import BindFailed
from tidegate_engine.server.listening import bind, port_of

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@asynccontextmanager
async def accepted() -> AsyncIterator[socket.socket]:
    """The server's end of a connection."""
    connected = asyncio.get_running_loop().create_future()
    bound = bind("127.0.0.1", 0)
    server = await asyncio.start_server(lambda _, writer: connected.set_result(writer), sock=bound)
    _, client = await asyncio.open_connection("127.0.0.1", port_of(bound))
    writer = await connected
    try:
        yield writer.get_extra_info("socket")
    finally:
        client.close()
        writer.close()
        server.close()
        await server.wait_closed()


async def test_an_address_that_is_not_ours_is_the_host_to_change():
    with pytest.raises(BindFailed, match=r"cannot listen on 192\.0\.2\.1 port 0: .*; choose another --host"):
        bind("192.0.2.1", 0)


async def test_small_answers_and_single_tokens_are_sent_at_once():
    """Nagle's algorithm would hold a token back until the last one is acknowledged, which takes a client 40 ms."""
    async with accepted() as connection:
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_a_peer_that_went_away_without_a_word_is_noticed_within_a_minute():
    """Nothing is written to a client that waits for a whole answer, so only probes tell that it is gone."""
    async with accepted() as connection:
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        idle, interval, count = (
            connection.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        )
        assert idle + interval * count <= 60
