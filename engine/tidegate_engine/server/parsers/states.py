"""How readers that come from state to state take their text: the parsers of calls and of reasoning build on it.

A state is a method that takes what it understands from the front of the buffer and names the next one.
"""

from collections.abc import Callable

from tidegate_engine.server.parsers.parts import Part


class StateReader:
    """A PartReader but for flush(). A state gives parts, or None where it needs more text."""

    _state: Callable[[], list[Part] | None]

    def __init__(self) -> None:
        self._buffer = ""  # not read yet

    def feed(self, text: str) -> list[Part]:
        self._buffer += text
        parts: list[Part] = []
        while self._buffer and (found := self._state()) is not None:
            parts += found
        return parts

    def _cut(self, length: int) -> str:
        """Takes so many characters off the buffer."""
        taken, self._buffer = self._buffer[:length], self._buffer[length:]
        return taken
