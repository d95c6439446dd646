"""A choice's pieces add up to the same answer however the engine groups its tokens into chunks."""

import codecs
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate_core.launch import ReasoningParser, ToolParser
from tidegate_engine.request import DEFAULT_TERMS, FinishReason, SamplingParams, TokenChunk, TokenLogprobs
from tidegate_engine.server.choices import Choice, ChoicePlan, Piece
from tidegate_engine.server.parsers.choice import AnswerFormat
from tidegate_engine.server.parsers.parts import CallStart, joined
from tidegate_engine.server.stream import Stopping

FORMATS = [AnswerFormat(ToolParser.HERMES, reasoning) for reasoning in (ReasoningParser.QWEN3, ReasoningParser.NONE)]
NAMES = ("now",)
CALL = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
TEXTS = st.lists(st.sampled_from(["<think>", "</think>", CALL, "é", "END", "EN", "\n", "x", "<tool_"]), max_size=6)


class BytesDecoder:
    def __init__(self) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token_ids: Sequence[int]) -> str:
        return self._utf8.decode(bytes(token_ids))

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)


class BytesCodec:
    def decoder(self, prompt_token_ids: Sequence[int], shown: frozenset[str] | None) -> BytesDecoder:
        return BytesDecoder()


class NoStream:
    def cancel(self) -> None: ...

    def complete(self) -> None: ...


def answer(text: str, ends: Sequence[int], form: AnswerFormat, *, several: bool, with_logprobs: bool) -> tuple:
    plan = ChoicePlan(
        (1,),
        SamplingParams(max_tokens=1000, num_logprobs=0 if with_logprobs else None),
        DEFAULT_TERMS,
        Stopping(("END",)),
        allows_several_calls=several,
        make_reader=lambda: form.reader(NAMES, None, is_open=False),
    )
    choice = Choice.begin(0, plan, NoStream(), BytesCodec())
    tokens, pieces, start = text.encode(), [], 0
    for end in ends:
        ids = tuple(tokens[start:end])
        reason = FinishReason.LENGTH if end == len(tokens) else None
        logprobs = tuple(TokenLogprobs(token_id, -1.0) for token_id in ids) if with_logprobs else ()
        pieces.append(choice.take(TokenChunk(ids, reason, logprobs)))
        start = end
        if choice.text.finish_reason is not None:
            break
    return summary(choice, pieces)


def summary(choice: Choice, pieces: Sequence[Piece]) -> tuple:
    assert [piece.finish_reason for piece in pieces[:-1]] == [None] * (len(pieces) - 1), "one end, the last"
    parts = joined([part for piece in pieces for part in piece.parts])
    assert pieces[-1].has_calls == any(isinstance(part, CallStart) for part in parts)
    tokens = [token for piece in pieces for token in piece.tokens]
    return parts, choice.text.finish_reason, choice.text.num_tokens, choice.num_reasoning_tokens, tokens


@settings(max_examples=200, deadline=None)
@given(TEXTS.map("".join), st.lists(st.integers(0, 200), max_size=8), st.sampled_from(FORMATS), st.data())
def test_parts_counts_and_logprobs_are_the_same_for_any_chunking(text, cuts, form, data):
    several, with_logprobs = data.draw(st.booleans()), data.draw(st.booleans())
    length = len(text.encode())
    ends = [*sorted({cut for cut in cuts if cut < length}), length]
    whole = answer(text, [length], form, several=several, with_logprobs=with_logprobs)
    assert answer(text, ends, form, several=several, with_logprobs=with_logprobs) == whole
    parts = whole[0]
    assert sum(isinstance(part, CallStart) for part in parts) <= (10 if several else 1)
    assert "END" not in "".join(part.text for part in parts if hasattr(part, "text"))
