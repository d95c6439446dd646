"""Which reader takes an answer apart: by the launch flags, else by what the model's chat template writes itself."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tidegate_core.launch import ReasoningParser, ToolParser
from tidegate_engine.server.parsers.calls import ArgumentsCall
from tidegate_engine.server.parsers.framed import FORCED_LIST, HERMES, LLAMA, MISTRAL, Frame, FramedReader
from tidegate_engine.server.parsers.parts import Part, PartReader, PlainReader, Prose
from tidegate_engine.server.parsers.pythonic import PythonicReader
from tidegate_engine.server.parsers.reasoning import CLOSE, OPEN, ReasoningReader

_FRAMES: dict[ToolParser, Frame] = {
    ToolParser.HERMES: HERMES,
    ToolParser.LLAMA3_JSON: LLAMA,
    ToolParser.MISTRAL: MISTRAL,
}


@dataclass(frozen=True)
class AnswerFormat:
    """How this model writes calls and reasoning; `tools` and `reasoning` are settled, never AUTO."""

    tools: ToolParser
    reasoning: ReasoningParser

    def shown_tokens(self, *, offers_tools: bool) -> frozenset[str]:
        """Tokens that a reader needs to see in the text, though they may be special."""
        reasoning = () if self.reasoning is ReasoningParser.NONE else (OPEN, CLOSE)
        frame = _FRAMES.get(self.tools) if offers_tools else None
        return frozenset(reasoning if frame is None else (*reasoning, *frame.markers))

    def is_open(self, prompt_text: str) -> bool:
        """Whether an answer to this prompt begins inside of the reasoning."""
        match self.reasoning:
            case ReasoningParser.QWEN3:
                return prompt_text.rstrip().endswith(OPEN)
            case ReasoningParser.DEEPSEEK_R1:
                return not prompt_text.rstrip().endswith(CLOSE)
            case _:
                return False

    def reader(self, names: Collection[str], forced: "ForcedCall | None", *, is_open: bool) -> PartReader:
        """Of one answer; `names` are the functions offered."""
        answer = self._call_reader(names, forced)
        return answer if self.reasoning is ReasoningParser.NONE else ReasoningReader(answer, is_open=is_open)

    def _call_reader(self, names: Collection[str], forced: "ForcedCall | None") -> PartReader:
        if forced is not None:
            return NamedReader(forced.name) if forced.name is not None else FramedReader(FORCED_LIST, names)
        if not names or self.tools is ToolParser.NONE:
            return PlainReader()
        frame = _FRAMES.get(self.tools)
        return PythonicReader(names) if frame is None else FramedReader(frame, names)


PLAIN_ANSWERS = AnswerFormat(ToolParser.NONE, ReasoningParser.NONE)


def answer_format(tools: ToolParser, reasoning: ReasoningParser, template: str | None) -> AnswerFormat:
    """Settles what is AUTO."""
    text = template or ""
    if tools is ToolParser.AUTO:
        tools = _tools_of(text)
    if reasoning is ReasoningParser.AUTO:
        reasoning = ReasoningParser.QWEN3 if CLOSE in text else ReasoningParser.NONE
    return AnswerFormat(tools, reasoning)


def _tools_of(template: str) -> ToolParser:
    marks: Sequence[tuple[str, ToolParser]] = (
        ("<tool_call>", ToolParser.HERMES),
        ("[TOOL_CALLS]", ToolParser.MISTRAL),
        ("<|python_tag|>", ToolParser.LLAMA3_JSON),
        ('"parameters":', ToolParser.LLAMA3_JSON),
    )
    # Templates without tools, such as Gemma's, are told of them in words; see text/tool_prompt.py.
    return next((parser for mark, parser in marks if mark in template), ToolParser.PYTHONIC)


@dataclass(frozen=True)
class ForcedCall:
    """The answer is held to calls by a grammar: of one function (its arguments alone), or of any in a JSON list."""

    name: str | None


class NamedReader:
    """The whole answer is the arguments of one call."""

    def __init__(self, name: str) -> None:
        self._call = ArgumentsCall(name, 0)
        self._prose = Prose()
        self._has_begun = self._has_ended = False

    def feed(self, text: str) -> list[Part]:
        if not self._has_begun:
            text = text.lstrip()
            if not text:
                return []
            self._has_begun = True
            self._prose.call()
        if self._has_ended:
            return self._prose.say(text)
        taken = self._call.feed(text)
        self._has_ended = taken.rest is not None
        return [*taken.parts, *(self._prose.say(taken.rest) if taken.rest else [])]

    def flush(self) -> list[Part]:
        return self._prose.end()
