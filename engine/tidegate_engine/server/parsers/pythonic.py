"""Tool calls as Python, f(a=1) or [f(a=1), g()], or as JSON: what Gemma 3 writes, plain or in a fenced block.

Python cannot go out piece by piece as JSON, so a block is kept until it is complete and then read as a whole.

    start --"[" or "{"--> block --bracket closes--> prose
    prose --```tool_code--> fenced --```--> prose
"""

import ast
import json
import re
import warnings
from collections.abc import Collection

from tidegate_engine.server.parsers.brackets import BracketScanner
from tidegate_engine.server.parsers.calls import Call, call_of, whole_call
from tidegate_engine.server.parsers.parts import Part, Prose
from tidegate_engine.server.parsers.states import StateReader
from tidegate_engine.server.stream import held_length

FENCES = ("```tool_code", "```tool_call", "```json")
FENCE_END = "```"
MAX_PYTHON_CHARACTERS = 2**16  # Python's parser works on the event loop
_ANY_FENCE = re.compile("|".join(FENCES))


class PythonicReader(StateReader):
    """Reads the calls of one answer that name one of the request's functions."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__()
        self._names = names
        self._prose = Prose()
        self._num_calls = 0
        self._extent = BracketScanner(quotes="\"'")
        self._num_scanned = 0
        self._state = self._at_start

    def flush(self) -> list[Part]:
        # A last block may lack its closing fence: some models stop before it.
        parts = self._read(self._buffer)
        return [*parts, *self._prose.end()]

    def _at_start(self) -> list[Part] | None:
        first = self._buffer.lstrip()[:1]
        if not first:
            return None
        self._state = self._in_block if first in "[{" else self._in_prose
        return []

    def _in_block(self) -> list[Part] | None:
        end = self._extent.scan(self._buffer[self._num_scanned :])
        if end is None:
            self._num_scanned = len(self._buffer)
            return None
        return self._take(self._num_scanned + end)

    def _in_prose(self) -> list[Part] | None:
        fence = _ANY_FENCE.search(self._buffer)
        if fence is not None:
            said = self._say(fence.start())
            self._state = self._in_fence
            self._num_scanned = len(fence[0])
            return said
        num_said = len(self._buffer) - held_length(self._buffer, FENCES)
        return self._say(num_said) if num_said else None

    def _in_fence(self) -> list[Part] | None:
        end = self._buffer.find(FENCE_END, self._num_scanned)
        if end < 0:
            self._num_scanned = max(self._num_scanned, len(self._buffer) - len(FENCE_END) + 1)
            return None
        return self._take(end + len(FENCE_END))

    def _take(self, end: int) -> list[Part]:
        self._state = self._in_prose
        return self._read(self._cut(end))

    def _say(self, length: int) -> list[Part]:
        return self._prose.say(self._cut(length))

    def _read(self, block: str) -> list[Part]:
        calls = read_calls(unfenced(block), self._names)
        if not calls:
            return self._prose.say(block)
        self._prose.call()
        first, self._num_calls = self._num_calls, self._num_calls + len(calls)
        return [part for index, call in enumerate(calls, first) for part in whole_call(index, call)]


def unfenced(block: str) -> str:
    text = block.strip()
    fence = _ANY_FENCE.match(text)
    return text[fence.end() :].removesuffix(FENCE_END).strip() if fence else text


def read_calls(text: str, names: Collection[str]) -> list[Call]:
    """All calls of a text that consists of nothing else; none if it does not."""
    if not text:
        return []
    read = _json_calls(text, names)
    found = _python_calls(text, names) if read is None else read
    return [call for call in found if call is not None] if None not in found else []


def _json_calls(text: str, names: Collection[str]) -> list[Call | None] | None:
    """None: it is no JSON."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return [call_of(item, names) for item in (value if isinstance(value, list) else [value])]


def _python_calls(text: str, names: Collection[str]) -> list[Call | None]:
    if len(text) > MAX_PYTHON_CHARACTERS:
        return []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    return [_python_call(node, names) for node in (tree.elts if isinstance(tree, ast.List) else [tree])]


def _python_call(node: ast.expr, names: Collection[str]) -> Call | None:
    if not isinstance(node, ast.Call) or node.args:
        return None
    name = ast.unparse(node.func)
    if name not in names:
        return None
    arguments: dict[str, object] = {}
    try:
        for keyword in node.keywords:
            if keyword.arg is None:
                return None
            arguments[keyword.arg] = ast.literal_eval(keyword.value)
        return Call(name, json.dumps(arguments, ensure_ascii=False, allow_nan=False))
    except (ValueError, TypeError, RecursionError, MemoryError):
        return None
