"""Long work beside the event loop, no more of it at a time than the front's backlog allows."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tidegate_engine.grammar.base import TokenConstraint
from tidegate_engine.grammar.spec import GrammarSpec
from tidegate_engine.server.errors import unavailable
from tidegate_engine.server.front import Front, Grammars

T = TypeVar("T")
BUSY_RETRY_SECONDS = 2.0


async def off_loop(front: Front, work: Callable[[], T]) -> T:
    """The work's result. Raises ApiError (503) if too many jobs wait already."""
    return await _bounded(front, lambda: asyncio.get_running_loop().run_in_executor(front.executor, work))


async def compiled(front: Front, grammars: Grammars, spec: GrammarSpec) -> TokenConstraint:
    """In the grammars' own thread, so that no prompt waits for it. Raises BadGrammar, or ApiError as off_loop."""
    return await _bounded(front, lambda: asyncio.wrap_future(grammars.submit(spec)))


async def _bounded(front: Front, start: Callable[[], Awaitable[T]]) -> T:
    backlog = front.backlog
    if backlog.num_jobs >= backlog.max_jobs:
        message = f"{backlog.num_jobs} prompts are being tokenized or wait for it; send the request again"
        raise unavailable(message, code="tokenizer_busy", retry_after_seconds=BUSY_RETRY_SECONDS)
    backlog.num_jobs += 1
    try:
        return await start()
    finally:
        backlog.num_jobs -= 1
