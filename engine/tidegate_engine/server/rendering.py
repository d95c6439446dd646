"""Pieces and whole choices as OpenAI's documents: a chat or a completion, whole or as the events of a stream.

Pure. The two renderers differ only in their documents, so routes treat both alike.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from tidegate_engine.request import FinishReason
from tidegate_engine.server.answers import (
    ChatAnswer,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    FinishText,
    FunctionText,
    Message,
    MessageDelta,
    ServiceTier,
    TextAnswer,
    ToolCallAnswer,
    Usage,
)
from tidegate_engine.server.choices import Piece, WholeChoice
from tidegate_engine.server.logprobs import Spell, chat_logprobs, prompt_logprobs
from tidegate_engine.server.parsers.parts import CallArguments, CallStart, Content, Part, Reasoning
from tidegate_engine.server.schemas.generation import StreamOptions

DONE_EVENT = b"data: [DONE]\n\n"
PING_EVENT = b": ping\n\n"  # a comment: keeps proxies from cutting a stream that waits for its first token
CALL_ID_DIGITS = 9  # Mistral's templates take no others
Chunk = TypeVar("Chunk", ChatChunk, TextAnswer)


def event(document: bytes) -> bytes:
    return b"data: " + document + b"\n\n"


def error_event(body: Mapping[str, object]) -> bytes:
    return event(json.dumps(body).encode())


@dataclass(frozen=True)
class AnswerHead:
    """What every chunk of one answer repeats, and what was asked to be in it."""

    id: str
    created: int
    model: str
    service_tier: ServiceTier | None = None
    has_logprobs: bool = False
    has_prompt_logprobs: bool = False

    @property
    def tier(self) -> dict[str, Any]:  # Any: one field of several models
        """Absent unless the client named one."""
        return {} if self.service_tier is None else {"service_tier": self.service_tier}

    def call_id(self, choice: int, call: int) -> str:
        return hashlib.sha256(f"{self.id}-{choice}-{call}".encode()).hexdigest()[:CALL_ID_DIGITS]


class Renderer(Protocol):
    """How one kind of answer is written. `usage` of the streaming methods: None unless asked for in every chunk."""

    def opening(self, index: int) -> bytes | None: ...

    def piece(self, index: int, piece: Piece, usage: Usage | None) -> bytes: ...

    def usage(self, usage: Usage) -> bytes: ...

    def whole(self, choices: Sequence[WholeChoice], usage: Usage) -> bytes: ...


class ChatRenderer:
    """chat.completion and its chunks: a role first, then reasoning, content and calls."""

    def __init__(self, head: AnswerHead, options: StreamOptions, spell: Spell) -> None:
        self._head = head
        self._options = options
        self._spell = spell

    def opening(self, index: int) -> bytes | None:
        delta = MessageDelta(role="assistant", content="")
        choice = ChatChunkChoice(index=index, delta=delta, logprobs=None, finish_reason=None)
        return self._chunk((choice,), None)

    def piece(self, index: int, piece: Piece, usage: Usage | None) -> bytes:
        # The closing chunk of a choice without further text has an empty delta, as OpenAI's.
        choice = ChatChunkChoice(
            index=index,
            delta=MessageDelta(**self._said(index, piece.parts)),
            logprobs=chat_logprobs(piece.tokens, self._spell) if self._head.has_logprobs else None,
            finish_reason=finish_text(piece.finish_reason, has_calls=piece.has_calls),
        )
        return self._chunk((choice,), usage)

    def usage(self, usage: Usage) -> bytes:
        return self._chunk((), usage)

    def whole(self, choices: Sequence[WholeChoice], usage: Usage) -> bytes:
        head = self._head
        answer = ChatAnswer(
            id=head.id,
            object="chat.completion",
            created=head.created,
            model=head.model,
            choices=tuple(self._whole_choice(index, choice) for index, choice in enumerate(choices)),
            usage=usage,
            **head.tier,
        )
        if head.has_prompt_logprobs:
            of_prompt = prompt_logprobs(choices[0].prompt_tokens, self._spell)
            answer = answer.model_copy(update={"prompt_logprobs": of_prompt})
        return answer.encode()

    def _whole_choice(self, index: int, choice: WholeChoice) -> ChatChoice:
        said = {"content": None if choice.has_calls else "", **self._said(index, choice.parts)}
        return ChatChoice(
            index=index,
            message=Message(role="assistant", refusal=None, **said),
            logprobs=None if choice.tokens is None else chat_logprobs(choice.tokens, self._spell),
            finish_reason=closing_text(choice.finish_reason, has_calls=choice.has_calls),
        )

    def _said(self, index: int, parts: Sequence[Part]) -> dict[str, Any]:  # Any: fields of two models
        """Only what there is; content beside a call that white space alone made is no content."""
        content = "".join(part.text for part in parts if isinstance(part, Content))
        reasoning = "".join(part.text for part in parts if isinstance(part, Reasoning))
        said: dict[str, Any] = {"content": content} if content else {}
        if reasoning:
            said |= {"reasoning_content": reasoning, "reasoning": reasoning}
        if calls := self._calls(index, parts):
            said["tool_calls"] = calls
        return said

    def _calls(self, index: int, parts: Sequence[Part]) -> tuple[ToolCallAnswer, ...]:
        """One entry a call: its beginning, more of its arguments, or both."""
        calls: dict[int, ToolCallAnswer] = {}
        for part in parts:
            if isinstance(part, CallStart):
                function = FunctionText(name=part.name, arguments="")
                call_id = self._head.call_id(index, part.number)
                calls[part.number] = ToolCallAnswer(index=part.number, id=call_id, type="function", function=function)
            elif isinstance(part, CallArguments):
                before = calls.get(part.number)
                text = (before.function.arguments if before else "") + part.text
                calls[part.number] = _with_arguments(before, part.number, text)
        return tuple(calls.values())

    def _chunk(self, choices: tuple[ChatChunkChoice, ...], usage: Usage | None) -> bytes:
        head = self._head
        chunk = ChatChunk(
            id=head.id,
            object="chat.completion.chunk",
            created=head.created,
            model=head.model,
            choices=choices,
            **head.tier,
        )
        return event(with_usage(chunk, usage, self._options).encode())


def _with_arguments(call: ToolCallAnswer | None, number: int, arguments: str) -> ToolCallAnswer:
    if call is None:
        return ToolCallAnswer(index=number, function=FunctionText(arguments=arguments))
    return call.model_copy(update={"function": call.function.model_copy(update={"arguments": arguments})})


def with_usage(chunk: Chunk, usage: Usage | None, options: StreamOptions) -> Chunk:
    """`usage` is absent unless the client asked for it, then null in every chunk that does not carry it."""
    return chunk.model_copy(update={"usage": usage}) if options.include_usage else chunk


def finish_text(reason: FinishReason | None, *, has_calls: bool = False) -> FinishText | None:
    return None if reason is None else closing_text(reason, has_calls=has_calls)


def closing_text(reason: FinishReason, *, has_calls: bool = False) -> FinishText:
    assert reason in (FinishReason.STOP, FinishReason.LENGTH), "aborts and errors end in an error event or status"
    if reason is FinishReason.LENGTH:
        return "length"
    return "tool_calls" if has_calls else "stop"
