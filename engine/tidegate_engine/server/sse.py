"""Server-sent events: a Generation written to a client that may be slow or leave at any moment.

After the 200 an error can only be an event: `data: {"error": ...}`, then [DONE], then the stream closes.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from tidegate_engine.server.errors import ApiError, internal_error
from tidegate_engine.server.generation import Generation
from tidegate_engine.server.rendering import DONE_EVENT, PING_EVENT, Renderer, error_event
from tidegate_engine.server.schemas.generation import StreamOptions

logger = logging.getLogger(__name__)


class EventStream(StreamingResponse):
    """Cancels its generation however it ends: finished, client gone (even before the first byte), server stopped."""

    def __init__(self, generation: Generation, renderer: Renderer, options: StreamOptions) -> None:
        self._generation = generation
        self._events = events(generation, renderer, options)
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no", **wait_header(generation)}
        super().__init__(self._events, headers=headers, media_type="text/event-stream")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._generation.cancel()

    async def stream_response(self, send: Send) -> None:
        async with aclosing(self._events):  # a client that leaves while we send must not leave the generator open
            await super().stream_response(send)


def wait_header(generation: Generation) -> dict[str, str]:
    """Seconds that this request was expected to wait when it was accepted: a stream tells before it starts."""
    return {"x-queue-eta": f"{generation.wait_seconds:.3f}"}


async def events(generation: Generation, renderer: Renderer, options: StreamOptions) -> AsyncGenerator[bytes, None]:
    """The whole stream, [DONE] included."""
    try:
        async for item in _answer_events(generation, renderer, options):
            yield item
    except ApiError as error:
        yield error_event(error.body())
    except Exception:
        logger.exception("a stream failed")
        yield error_event(internal_error("the server failed on this request; its log has the details").body())
    yield DONE_EVENT


async def _answer_events(
    generation: Generation, renderer: Renderer, options: StreamOptions
) -> AsyncGenerator[bytes, None]:
    """A ping also where tokens come but say nothing for long: held for a call, or special ones that are not shown."""
    is_open = [False] * generation.num_choices
    clock = asyncio.get_running_loop().time
    sent_seconds = clock()
    async with aclosing(generation.pieces()) as pieces:
        async for item in pieces:
            if item is None:
                yield PING_EVENT
                sent_seconds = clock()
                continue
            index, piece = item
            if not is_open[index] and (opening := renderer.opening(index)):
                yield opening
            is_open[index] = True
            if not piece.says_nothing:
                yield renderer.piece(index, piece, generation.usage() if options.continuous_usage_stats else None)
                sent_seconds = clock()
            elif clock() - sent_seconds >= generation.ping_seconds:
                yield PING_EVENT
                sent_seconds = clock()
    if options.include_usage:
        yield renderer.usage(generation.usage())
