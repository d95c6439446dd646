"""What a caller holds of a running request: an async iterator of sampled tokens, and the way to cancel.

All of it lives on the event loop's thread; the engine thread reaches it through call_soon_threadsafe only. A reader
that is slow finds its tokens merged into one chunk, so memory is bounded by max_tokens and nobody waits for it.
"""

import asyncio
from collections.abc import Callable
from typing import Self

from tidegate_engine.request import FinishReason, TokenChunk, merged
from tidegate_engine.timing import RequestTimes


class Stream:
    """Async iterator of TokenChunk; ends after the chunk with a finish reason."""

    def __init__(
        self,
        request_id: str,
        end_soon: Callable[[str, FinishReason], None],
        times: RequestTimes,
        *,
        wait_seconds: float = 0.0,
    ) -> None:
        """`wait_seconds`: what it was expected to wait when it was accepted."""
        self.request_id = request_id
        self.wait_seconds = wait_seconds
        self.times = times
        self.left_by: FinishReason | None = None  # how its reader ended it, if it did: tokens after that are wasted
        self._end_soon = end_soon
        self._unread: list[TokenChunk] = []
        self._finish_reason: FinishReason | None = None
        self._is_drained = False
        self._ready = asyncio.Event()

    def cancel(self) -> None:
        """The request's KV blocks are free within two steps. Harmless when it has ended already."""
        self._leave(FinishReason.ABORT)

    def complete(self) -> None:
        """Like cancel(), for a text that a stop string has ended: the request did run to its end."""
        self._leave(FinishReason.STOP)

    def _leave(self, reason: FinishReason) -> None:
        if self._finish_reason is None and self.left_by is None:
            self.left_by = reason
            self._end_soon(self.request_id, reason)

    def push(self, chunk: TokenChunk) -> None:
        """Called by the engine's loop, never by readers."""
        self._unread.append(chunk)
        self._finish_reason = chunk.finish_reason
        self._ready.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TokenChunk:
        if self._is_drained:
            raise StopAsyncIteration
        await self._ready.wait()
        self._ready.clear()
        chunk = merged(self._unread)
        self._unread.clear()
        self._is_drained = chunk.finish_reason is not None
        return chunk
