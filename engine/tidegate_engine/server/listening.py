"""HTTP servers inside our own asyncio loop: sockets are bound first (port 0 can be told), signals left to serve.py."""

import asyncio
import contextlib
import errno
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from tidegate_engine.process.exits import BindFailed
from tidegate_engine.server.connections import MAX_HEAD_BYTES, Connection

KEEP_ALIVE_SECONDS = 75  # longer than usual client pools keep a connection, so that they close it and never race us
GRACEFUL_CLOSE_SECONDS = 5
LISTEN_BACKLOG = 2048
# A peer that went away without a word (a node lost, a cable pulled) is noticed within a minute, and its request ended.
TCP_KEEPALIVE = {socket.TCP_KEEPIDLE: 30, socket.TCP_KEEPINTVL: 10, socket.TCP_KEEPCNT: 3}

_PORT_ERRORS = (errno.EADDRINUSE, errno.EACCES)  # taken, or for the superuser only


def bind(host: str, port: int, flag: str = "--port") -> socket.socket:
    """A bound socket that does not listen yet: clients are refused until its server starts.

    Raises BindFailed, which names the argument to change: `flag` is that of the port.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns Nagle off (which holds back every small write for 40 ms) only on sockets that say they are TCP.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # this and the next: accepted sockets inherit them
    for option, value in TCP_KEEPALIVE.items():
        bound.setsockopt(socket.IPPROTO_TCP, option, value)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        wrong = flag if error.errno in _PORT_ERRORS else "--host"
        raise BindFailed(f"cannot listen on {host} port {port}: {error.strerror}; choose another {wrong}") from error
    return bound


def port_of(bound: socket.socket) -> int:
    port = bound.getsockname()[1]
    assert isinstance(port, int)
    return port


class HttpServer:
    """One app on one socket, as a task of the running loop."""

    def __init__(self, app: ASGIApp, bound: socket.socket, connection: type[Connection] = Connection) -> None:
        self._bound = bound
        self._server = _QuietServer(
            uvicorn.Config(
                app,
                http=connection,
                h11_max_incomplete_event_size=MAX_HEAD_BYTES,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                backlog=LISTEN_BACKLOG,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=GRACEFUL_CLOSE_SECONDS,
            )
        )
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns when connections are accepted."""
        self._task = asyncio.create_task(self._server.serve(sockets=[self._bound]))
        await self._server.accepting.wait()

    async def stop(self) -> None:
        """Idle connections close at once, answers in progress get a few seconds to be written."""
        assert self._task is not None, "started before it is stopped"
        self._server.should_exit = True
        await self._task


class _QuietServer(uvicorn.Server):
    """uvicorn installs its own signal handlers around serve(); ours decide how a process ends."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.accepting = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.accepting.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
