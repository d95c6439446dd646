"""One HTTP request's running choices: submitted together, merged as they produce, ended together.

cancel() is the single way out: whoever drives a Generation calls it when it is done with it, for whatever reason, so
that a client that leaves frees its KV.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace

from tidegate_engine.errors import EngineError
from tidegate_engine.grammar.base import TokenConstraint
from tidegate_engine.request import FinishReason, TokenChunk
from tidegate_engine.server.answers import Usage
from tidegate_engine.server.choices import Choice, ChoicePlan, Piece, WholeChoice, whole_choice
from tidegate_engine.server.errors import ApiError, bad_request, internal_error, unavailable
from tidegate_engine.server.front import Front


class Generation:
    """Choices of one request. Raises what the engine raises if one of them is refused; then none runs.

    Raises ApiError (400) for more of them than the engine takes even when it has nothing else to do.
    """

    def __init__(self, front: Front, request_id: str, plans: Sequence[ChoicePlan], *, num_each: int = 1) -> None:
        """`num_each`: so many neighbours share a prompt, which counts once."""
        _check_number(len(plans), front.engine.most_at_once)
        self._front = front
        self._choices: list[Choice] = []
        self._num_each = num_each
        try:
            for index, plan in enumerate(plans):
                stream = front.engine.submit(
                    f"{request_id}-{index}", plan.prompt, plan.sampling, plan.terms, plan.constraint
                )
                self._choices.append(Choice.begin(index, plan, stream, front.codec))
        except EngineError:
            self.cancel()
            raise
        front.engine.counters.requests.num_choices.observe(num_each)

    def cancel(self) -> None:
        for choice in self._choices:
            choice.stream.cancel()

    @property
    def num_choices(self) -> int:
        return len(self._choices)

    @property
    def ping_seconds(self) -> float:
        """A client that has heard nothing for so long is told that its answer still runs."""
        return self._front.ping_seconds

    @property
    def wait_seconds(self) -> float:
        """What the last of its choices was expected to wait."""
        return max(choice.stream.wait_seconds for choice in self._choices)

    def usage(self) -> Usage:
        first_of_prompts = self._choices[:: self._num_each]
        return Usage.of(
            sum(len(choice.plan.prompt) for choice in first_of_prompts),
            sum(choice.text.num_tokens for choice in self._choices),
            num_cached=sum(choice.num_cached_tokens for choice in first_of_prompts),
            num_reasoning=sum(choice.num_reasoning_tokens for choice in self._choices),
        )

    async def pieces(self) -> AsyncGenerator[tuple[int, Piece] | None, None]:
        """(choice index, piece), one per token chunk even if it says nothing; None when nothing came for a while.

        Raises ApiError if the engine fails or stops.
        """
        async with aclosing(_merged(self._choices, self._front.ping_seconds)) as chunks:
            async for item in chunks:
                yield item and (item[0].index, self._take(*item))

    def _take(self, choice: Choice, chunk: TokenChunk) -> Piece:
        if chunk.finish_reason in (FinishReason.ABORT, FinishReason.ERROR):
            raise _broken(chunk.finish_reason, choice.plan.constraint)
        num_before = choice.text.num_tokens
        piece = choice.take(chunk)
        if piece.finish_reason is not None:
            num_unused = num_before + len(chunk.token_ids) - choice.text.num_tokens
            self._front.engine.counters.count_wasted(FinishReason.STOP, num_unused)
            choice.stream.complete()  # a stop string ends the text before the engine knows
        return piece

    async def collect(self) -> list[WholeChoice]:
        """The finished choices. Raises ApiError if the engine fails."""
        pieces: list[list[Piece]] = [[] for _ in self._choices]
        async for item in self.pieces():
            if item is not None:
                pieces[item[0]].append(item[1])
        wholes = [whole_choice(choice, its) for choice, its in zip(self._choices, pieces, strict=True)]
        return [
            replace(whole, prompt_tokens=wholes[index - index % self._num_each].prompt_tokens)
            for index, whole in enumerate(wholes)
        ]


async def _merged(
    choices: Sequence[Choice], idle_seconds: float
) -> AsyncGenerator[tuple[Choice, TokenChunk] | None, None]:
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


def _check_number(num_choices: int, most: int) -> None:
    if num_choices > most:
        message = f"{num_choices} choices in one request, but this engine runs and queues {most}: ask for fewer at once"
        raise bad_request(message, code="too_many_choices")


def _broken(reason: FinishReason, constraint: TokenConstraint | None) -> ApiError:
    if constraint is not None and constraint.failure is not None:
        return bad_request(constraint.failure, code="invalid_grammar")
    if reason is FinishReason.ABORT:
        return unavailable("the server is shutting down; send the request again", code="aborted", retry_after_seconds=1)
    return internal_error("the engine failed on this request; its log has the details")
