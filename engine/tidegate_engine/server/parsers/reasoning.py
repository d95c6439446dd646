"""Reasoning in <think>...</think> before the answer, as Qwen3 and DeepSeek write it.

start --<think>, or open from the prompt--> thinking --</think>--> answer
+------------- anything else ----------------------------------> answer
"""

from tidegate_engine.server.parsers.parts import Part, PartReader, Reasoning
from tidegate_engine.server.parsers.states import StateReader
from tidegate_engine.server.stream import held_length

OPEN, CLOSE = "<think>", "</think>"


class ReasoningReader(StateReader):
    """Takes the reasoning off and gives the rest to the answer's own reader, to its very end."""

    def __init__(self, answer: PartReader, *, is_open: bool) -> None:
        """`is_open`: the prompt ended inside of the reasoning."""
        super().__init__()
        self._answer = answer
        self._space = ""  # in front of what may be the end of the reasoning
        self._state = self._thinking if is_open else self._start
        self._has_begun = False

    @property
    def is_reasoning(self) -> bool:
        return self._state == self._thinking

    def flush(self) -> list[Part]:
        text = self._cut(len(self._buffer))
        if self.is_reasoning:
            return [Reasoning(self._space + text)] if self._space + text else []
        return [*self._answer.feed(text), *self._answer.flush()]

    def _start(self) -> list[Part] | None:
        text = self._buffer.lstrip()
        if text.startswith(OPEN):
            self._buffer = text[len(OPEN) :]
            self._state = self._thinking
        elif OPEN.startswith(text):
            return None
        else:
            self._state = self._answering
        return []

    def _thinking(self) -> list[Part] | None:
        """White space at both ends of the reasoning is the template's."""
        at = self._buffer.find(CLOSE)
        if at >= 0:
            said = self._cut(at)
            self._cut(len(CLOSE))
            self._state = self._closed
            return self._reason(said)
        num_said = len(self._buffer) - held_length(self._buffer, (CLOSE,))
        return self._reason(self._cut(num_said)) if num_said else None

    def _reason(self, text: str) -> list[Part]:
        text = self._space + text
        said = text.rstrip()
        self._space = text[len(said) :]
        said = said if self._has_begun else said.lstrip()
        self._has_begun = self._has_begun or bool(said)
        return [Reasoning(said)] if said else []

    def _closed(self) -> list[Part] | None:
        """White space between reasoning and answer is the template's too."""
        self._buffer = self._buffer.lstrip()
        if not self._buffer:
            return None
        self._state = self._answering
        return []

    def _answering(self) -> list[Part]:
        return self._answer.feed(self._cut(len(self._buffer)))
