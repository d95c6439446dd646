"""Deltas and texts as OpenAI's documents: a chat or a completion, whole or as the events of a stream.

Pure. The two renderers differ only in their documents, so routes treat both alike.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from tidegate_engine.request import FinishReason
from tidegate_engine.server.answers import (
    ChatAnswer,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    FinishText,
    Message,
    MessageDelta,
    TextAnswer,
    TextChoice,
    Usage,
)
from tidegate_engine.server.schemas.generation import StreamOptions
from tidegate_engine.server.stream import Delta

DONE_EVENT = b"data: [DONE]\n\n"
PING_EVENT = b": ping\n\n"  # a comment: keeps proxies from cutting a stream that waits for its first token
Chunk = TypeVar("Chunk", ChatChunk, TextAnswer)


def event(document: bytes) -> bytes:
    return b"data: " + document + b"\n\n"


def error_event(body: Mapping[str, object]) -> bytes:
    return event(json.dumps(body).encode())


@dataclass(frozen=True)
class AnswerHead:
    """What every chunk of one answer repeats."""

    id: str
    created: int
    model: str


@dataclass(frozen=True)
class WholeText:
    """A finished choice."""

    text: str
    finish_reason: FinishReason


class Renderer(Protocol):
    """How one kind of answer is written. `usage` of the streaming methods: None unless asked for in every chunk."""

    def opening(self, index: int) -> bytes | None: ...

    def delta(self, index: int, delta: Delta, usage: Usage | None) -> bytes: ...

    def usage(self, usage: Usage) -> bytes: ...

    def whole(self, choices: Sequence[WholeText], usage: Usage) -> bytes: ...


class ChatRenderer:
    """chat.completion and its chunks: a role first, then content."""

    def __init__(self, head: AnswerHead, options: StreamOptions) -> None:
        self._head = head
        self._options = options

    def opening(self, index: int) -> bytes | None:
        return self._chunk((self._choice(index, MessageDelta(role="assistant", content=""), None),), None)

    def delta(self, index: int, delta: Delta, usage: Usage | None) -> bytes:
        # The closing chunk of a choice without further text has an empty delta, as OpenAI's.
        message = MessageDelta(content=delta.text) if delta.text else MessageDelta()
        return self._chunk((self._choice(index, message, finish_text(delta.finish_reason)),), usage)

    def usage(self, usage: Usage) -> bytes:
        return self._chunk((), usage)

    def whole(self, choices: Sequence[WholeText], usage: Usage) -> bytes:
        listed = tuple(
            ChatChoice(
                index=index,
                message=Message(role="assistant", content=choice.text, refusal=None),
                logprobs=None,
                finish_reason=closing_text(choice.finish_reason),
            )
            for index, choice in enumerate(choices)
        )
        head = self._head
        return ChatAnswer(
            id=head.id, object="chat.completion", created=head.created, model=head.model, choices=listed, usage=usage
        ).encode()

    def _choice(self, index: int, delta: MessageDelta, finish: FinishText | None) -> ChatChunkChoice:
        return ChatChunkChoice(index=index, delta=delta, logprobs=None, finish_reason=finish)

    def _chunk(self, choices: tuple[ChatChunkChoice, ...], usage: Usage | None) -> bytes:
        head = self._head
        chunk = ChatChunk(
            id=head.id, object="chat.completion.chunk", created=head.created, model=head.model, choices=choices
        )
        return event(with_usage(chunk, usage, self._options).encode())


class CompletionRenderer:
    """text_completion, whole and in chunks."""

    def __init__(self, head: AnswerHead, options: StreamOptions) -> None:
        self._head = head
        self._options = options

    def opening(self, index: int) -> bytes | None:  # noqa: ARG002 - the protocol's: completions have no role
        return None

    def delta(self, index: int, delta: Delta, usage: Usage | None) -> bytes:
        choice = TextChoice(index=index, text=delta.text, logprobs=None, finish_reason=finish_text(delta.finish_reason))
        return event(with_usage(self._answer((choice,)), usage, self._options).encode())

    def usage(self, usage: Usage) -> bytes:
        return event(with_usage(self._answer(()), usage, self._options).encode())

    def whole(self, choices: Sequence[WholeText], usage: Usage) -> bytes:
        listed = tuple(
            TextChoice(index=index, text=choice.text, logprobs=None, finish_reason=finish_text(choice.finish_reason))
            for index, choice in enumerate(choices)
        )
        return self._answer(listed).model_copy(update={"usage": usage}).encode()

    def _answer(self, choices: tuple[TextChoice, ...]) -> TextAnswer:
        head = self._head
        return TextAnswer(id=head.id, object="text_completion", created=head.created, model=head.model, choices=choices)


def with_usage(chunk: Chunk, usage: Usage | None, options: StreamOptions) -> Chunk:
    """`usage` is absent unless the client asked for it, then null in every chunk that does not carry it."""
    return chunk.model_copy(update={"usage": usage}) if options.include_usage else chunk


def finish_text(reason: FinishReason | None) -> FinishText | None:
    return None if reason is None else closing_text(reason)


def closing_text(reason: FinishReason) -> FinishText:
    assert reason in (FinishReason.STOP, FinishReason.LENGTH), "aborts and errors end in an error event or status"
    return "length" if reason is FinishReason.LENGTH else "stop"
