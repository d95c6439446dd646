"""What every connection to an engine's ports is like, whatever is said on it."""

import asyncio
import socket

import pytest

from tidegate_engine.server.listening import bind, port_of

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_small_answers_and_single_tokens_are_sent_at_once():
    """Nagle's algorithm would hold a token back until the last one is acknowledged, which takes a client 40 ms."""
    accepted = asyncio.get_running_loop().create_future()
    server = await asyncio.start_server(
        lambda _, writer: accepted.set_result(writer), sock=(bound := bind("127.0.0.1", 0))
    )
    _, client = await asyncio.open_connection("127.0.0.1", port_of(bound))
    writer = await accepted
    try:
        assert writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    finally:
        for open_writer in (client, writer):
            open_writer.close()
        server.close()
        await server.wait_closed()
