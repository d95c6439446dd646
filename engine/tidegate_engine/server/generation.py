"""One HTTP request's running choices: submitted together, merged as they produce, ended together.

cancel() is the single way out: whoever drives a Generation calls it when it is done with it, for whatever reason, so
that a client that leaves frees its KV.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from tidegate_engine.errors import EngineError
from tidegate_engine.request import FinishReason, SamplingParams, Terms, TokenChunk
from tidegate_engine.server.answers import Usage
from tidegate_engine.server.errors import ApiError, internal_error, unavailable
from tidegate_engine.server.front import Front, TokenStream
from tidegate_engine.server.rendering import WholeText
from tidegate_engine.server.stream import ChoiceText, Delta


@dataclass(frozen=True)
class PromptPlan:
    """A prompt ready to run."""

    token_ids: Sequence[int]
    sampling: SamplingParams
    terms: Terms
    stop_strings: tuple[str, ...]


class Generation:
    """Choices of one request. Raises what the engine raises if one of them is refused; then none runs."""

    def __init__(self, front: Front, request_id: str, plans: Sequence[PromptPlan]) -> None:
        self._front = front
        self._choices: list[_Choice] = []
        self._num_prompt_tokens = sum(len(plan.token_ids) for plan in plans)
        try:
            for index, plan in enumerate(plans):
                stream = front.engine.submit(f"{request_id}-{index}", plan.token_ids, plan.sampling, plan.terms)
                text = ChoiceText(front.codec.decoder(plan.token_ids), plan.stop_strings)
                self._choices.append(_Choice(index, stream, text))
        except EngineError:
            self.cancel()
            raise

    def cancel(self) -> None:
        for choice in self._choices:
            choice.stream.cancel()

    @property
    def num_choices(self) -> int:
        return len(self._choices)

    def usage(self) -> Usage:
        return Usage.of(self._num_prompt_tokens, sum(choice.text.num_tokens for choice in self._choices))

    async def deltas(self) -> AsyncGenerator[tuple[int, Delta] | None, None]:
        """(choice index, delta), one per token chunk even if it has no text yet; None when nothing came for a while.

        Raises ApiError if the engine fails or stops.
        """
        async with aclosing(_merged(self._choices, self._front.ping_seconds)) as chunks:
            async for item in chunks:
                yield item and (item[0].index, self._take(*item))

    def _take(self, choice: "_Choice", chunk: TokenChunk) -> Delta:
        if chunk.finish_reason in (FinishReason.ABORT, FinishReason.ERROR):
            raise _broken(chunk.finish_reason)
        num_before = choice.text.num_tokens
        delta = choice.text.feed(chunk.token_ids, chunk.finish_reason, is_all_text=chunk.is_all_text)
        if delta.finish_reason is not None:
            num_unused = num_before + len(chunk.token_ids) - choice.text.num_tokens
            self._front.engine.counters.count_wasted(FinishReason.STOP, num_unused)
            choice.stream.complete()  # a stop string ends the text before the engine knows
        return delta

    async def collect(self) -> list[WholeText]:
        """The finished choices. Raises ApiError if the engine fails."""
        parts: list[list[str]] = [[] for _ in self._choices]
        async for item in self.deltas():
            if item is not None:
                parts[item[0]].append(item[1].text)
        return [
            WholeText("".join(texts), choice.text.finish_reason or FinishReason.STOP)
            for texts, choice in zip(parts, self._choices, strict=True)
        ]


@dataclass
class _Choice:
    index: int
    stream: TokenStream
    text: ChoiceText


async def _merged(
    choices: Sequence[_Choice], idle_seconds: float
) -> AsyncGenerator[tuple[_Choice, TokenChunk] | None, None]:
    """Chunks of all choices in the order they come, until each has finished; None after each idle period."""
    sources = {choice.index: aiter(choice.stream) for choice in choices}
    pending = {_next(sources[choice.index]): choice for choice in choices}
    try:
        while pending:
            done, _ = await asyncio.wait(pending, timeout=idle_seconds, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                yield None
            for task in done:
                choice = pending.pop(task)
                yield choice, task.result()
                if choice.text.finish_reason is None:
                    pending[_next(sources[choice.index])] = choice
    finally:
        for task in pending:
            task.cancel()


def _next(source: AsyncIterator[TokenChunk]) -> asyncio.Task[TokenChunk]:
    async def chunk() -> TokenChunk:
        # A stream ends with a chunk that has a finish reason; one that just ends was broken off.
        return await anext(source, TokenChunk((), FinishReason.ABORT))

    return asyncio.create_task(chunk())


def _broken(reason: FinishReason) -> ApiError:
    if reason is FinishReason.ABORT:
        return unavailable("the server is shutting down; send the request again", code="aborted", retry_after_seconds=1)
    return internal_error("the engine failed on this request; its log has the details")
