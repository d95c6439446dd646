"""One tool call as it is written: JSON with a name in it, or the arguments alone after a name.

A call is certain once its name is one of the request's functions and its arguments have begun; from then on arguments
go out as they come, right or wrong, as OpenAI's do. Anything else is kept until it is complete, and read as a whole.
"""

import json
import re
from collections.abc import Collection
from typing import NamedTuple, Protocol

from tidegate_engine.server.parsers.brackets import BracketScanner
from tidegate_engine.server.parsers.parts import CallArguments, CallStart, Part

# A name is at most 64 characters, so what does not begin like this here begins differently.
HEAD_CHARACTERS = 512
_HEAD = re.compile(r'\{\s*"name"\s*:\s*"([^"\\]+)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')


class Taken(NamedTuple):
    """`rest`: the text after the call, None while it goes on."""

    parts: list[Part]
    rest: str | None


class CallReader(Protocol):
    """Reads one call. `is_call` is final once it is True, or the call has ended; `text` is all it took."""

    @property
    def is_call(self) -> bool: ...

    @property
    def text(self) -> str: ...

    def feed(self, text: str) -> Taken: ...


class ArgumentsCall:
    """A call whose name is known; its text is the arguments' JSON object."""

    def __init__(self, name: str, index: int) -> None:
        self.is_call = True
        self.text = ""
        self._index = index
        self._opening: list[Part] = [CallStart(index, name)]
        self._extent = BracketScanner()

    def feed(self, text: str) -> Taken:
        end = self._extent.scan(text)
        parts, self._opening = self._opening, []
        if taken := text[:end]:
            parts.append(CallArguments(self._index, taken))
        return Taken(parts, None if end is None else text[end:])


class JsonCall:
    """A call written as {"name": ..., "arguments": {...}}; Llama says "parameters"."""

    def __init__(self, names: Collection[str], index: int) -> None:
        self._names = names
        self._index = index
        self._pieces: list[str] = []
        self._head = ""
        self._extent = BracketScanner()
        self._arguments: ArgumentsCall | None = None
        self._is_open = False  # whether more of the arguments is to come
        self._is_whole_call = False

    @property
    def is_call(self) -> bool:
        return self._arguments is not None or self._is_whole_call

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def feed(self, text: str) -> Taken:
        end = self._extent.scan(text)
        taken, rest = text[:end], None if end is None else text[end:]
        self._pieces.append(taken)
        parts = self._go_on(taken)
        if rest is not None and not self.is_call:
            parts = self._read_whole()
        return Taken(parts, rest)

    def _go_on(self, taken: str) -> list[Part]:
        """What can be said before the object is complete."""
        if self._arguments is not None:
            return self._more(taken)
        if len(self._head) >= HEAD_CHARACTERS:
            return []
        self._head = self.text[:HEAD_CHARACTERS]
        head = _HEAD.match(self._head)
        if head is None or head[1] not in self._names:
            return []
        self._arguments = ArgumentsCall(head[1], self._index)
        self._is_open = True
        return self._more(self.text[head.end() :])

    def _more(self, text: str) -> list[Part]:
        assert self._arguments is not None
        if not self._is_open:
            return []
        taken = self._arguments.feed(text)
        self._is_open = taken.rest is None
        return taken.parts

    def _read_whole(self) -> list[Part]:
        call = read_call(self.text, self._names)
        self._is_whole_call = call is not None
        return [] if call is None else whole_call(self._index, call)


class Call(NamedTuple):
    name: str
    arguments: str


def whole_call(index: int, call: Call) -> list[Part]:
    return [CallStart(index, call.name), CallArguments(index, call.arguments)]


def read_call(text: str, names: Collection[str]) -> Call | None:
    """The call that a complete JSON text is."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return call_of(value, names)


def call_of(value: object, names: Collection[str]) -> Call | None:
    """Arguments may be left out, or be JSON in a string."""
    if not isinstance(value, dict) or not isinstance(name := value.get("name"), str) or name not in names:
        return None
    match value.get("arguments", value.get("parameters")):
        case None:
            return Call(name, "{}")
        case str(arguments) if is_object(arguments):
            return Call(name, arguments)
        case dict(arguments):
            return Call(name, json.dumps(arguments, ensure_ascii=False))
        case _:
            return None


def is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
