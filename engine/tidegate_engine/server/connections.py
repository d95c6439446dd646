"""What one connection may cost: bounds on a request's head and on a reader that stalls, and faults in OpenAI's shape.

    connected --head within HEAD_SECONDS--> request --answer, its reader takes some of it every STALL_SECONDS--> ...
        |                                                  |
        +------------------ closed <-----------------------+

Bodies have bounds of their own (bodies.py). A connection that is closed ends its request, whose KV is then freed.
"""

import asyncio
import json

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from tidegate_engine.server.errors import bad_request

HEAD_SECONDS = 20.0  # from the connection's start, or the last answer's end, to a whole head
STALL_SECONDS = 60.0  # keep-alive probes notice a peer that is gone: this one is there, and reads nothing
MAX_HEAD_BYTES = 64 * 1024


class Connection(H11Protocol):
    """uvicorn's connection with deadlines. Everything happens on the event loop's thread."""

    head_seconds = HEAD_SECONDS
    stall_seconds = STALL_SECONDS

    _head_timer: asyncio.TimerHandle | None = None
    _stall_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(self.head_seconds, self._head_is_late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget(self._head_timer, self._stall_timer)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        is_between_requests = self.cycle is not None and self.cycle.response_complete
        super().data_received(data)
        if self._is_within_head():
            if is_between_requests and self._head_timer is None:
                self._head_timer = self.loop.call_later(self.head_seconds, self._head_is_late)
        else:
            self._forget(self._head_timer)
            self._head_timer = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self._forget(self._stall_timer)
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Not HTTP, or a head that is too large. Whatever went wrong in parsing, the answer is whole and the last."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):  # in the middle of an answer
            self.transport.close()
            return
        body = json.dumps(bad_request(msg, code="invalid_http").body()).encode()
        headers = [("content-type", "application/json"), ("content-length", str(len(body))), ("connection", "close")]
        for event in (h11.Response(status_code=400, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _is_within_head(self) -> bool:
        """Whether the peer owes us (the rest of) a request's head."""
        return self.conn.their_state is h11.IDLE

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self._is_within_head() and not self.transport.is_closing():
            self.transport.abort()

    def _watch_reader(self, num_unsent: int) -> None:
        self._forget(self._stall_timer)
        self._stall_timer = self.loop.call_later(self.stall_seconds, self._check_reader, num_unsent)

    def _check_reader(self, num_unsent: int) -> None:
        """While writing is paused the buffer only shrinks; if it has not, nothing was read."""
        num_left = self.transport.get_write_buffer_size()
        if num_left < num_unsent:
            self._watch_reader(num_left)
        else:
            self.transport.abort()

    @staticmethod
    def _forget(*timers: asyncio.TimerHandle | None) -> None:
        for timer in timers:
            if timer is not None:
                timer.cancel()
