"""Tool calls as JSON objects in a frame that the model's family has learnt, with content before, between and after.

prose --opening--> begun --"{"--> calling --"}"--> after --closing, or other text--> prose
|               |               +---- separator and "{" -------> calling
+---------------+--- it is no call: all of it is content ------> prose
"""

import re
from collections.abc import Collection
from typing import NamedTuple

from tidegate_engine.server.parsers.calls import ArgumentsCall, CallReader, JsonCall
from tidegate_engine.server.parsers.parts import Part, Prose
from tidegate_engine.server.parsers.states import StateReader
from tidegate_engine.server.stream import held_length


class Frame(NamedTuple):
    """How a family writes calls. An empty opening: calls begin with the text, or they do not come at all."""

    opening: str
    closing: str = ""
    separators: str = ""
    has_list: bool = False  # the objects may stand in [...]
    has_names: bool = False  # or be arguments after a name
    optional_opening: str = ""  # of calls that begin with the text

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that may be special tokens."""
        named = ("[ARGS]", "[CALL_ID]") if self.has_names else ()
        return tuple(marker for marker in (self.opening, self.closing, self.optional_opening, *named) if marker)


HERMES = Frame("<tool_call>", "</tool_call>")
LLAMA = Frame("", separators=";,", optional_opening="<|python_tag|>")
MISTRAL = Frame("[TOOL_CALLS]", separators=",", has_list=True, has_names=True)
FORCED_LIST = Frame("", separators=",", has_list=True)

# Mistral's newer form: name[ARGS]{...}, with [CALL_ID]... between them in some versions
_NAMED = re.compile(r"([\w.-]{1,64})(?:\[CALL_ID\]\w{0,64})?(?:\[ARGS\])?\s{0,8}(?=\{)")
_NAMED_SO_FAR = re.compile(r"[\w.-]{1,64}(?:\[(?:[A-Z_]{0,7}\]?)(?:\w{0,64}(?:\[[A-Z]{0,4}\]?)?)?)?\s{0,8}")


class FramedReader(StateReader):
    """Reads the calls of one answer that name one of the request's functions."""

    def __init__(self, frame: Frame, names: Collection[str]) -> None:
        super().__init__()
        self._frame = frame
        self._names = names
        self._prose = Prose()
        self._skipped = ""  # read, and content if no call follows
        self._closing = ""
        self._num_calls = 0
        self._call: CallReader | None = None
        self._state = self._in_prose if frame.opening else self._at_start

    def flush(self) -> list[Part]:
        call, self._call = self._call, None
        if call is not None and call.is_call:  # cut off in the middle: what there is has gone out
            return self._prose.end()
        unread = self._skipped + (call.text if call is not None else "") + self._buffer
        return [*self._prose.say(unread), *self._prose.end()]

    def _in_prose(self) -> list[Part] | None:
        opening = self._frame.opening
        if not opening:
            return self._say(len(self._buffer))
        at = self._buffer.find(opening)
        if at < 0:
            num_said = len(self._buffer) - held_length(self._buffer, (opening,))
            return self._say(num_said) if num_said else None
        said = self._say(at)
        self._skip(len(opening))
        self._state = self._begun
        return said

    def _say(self, length: int) -> list[Part]:
        return self._prose.say(self._cut(length))

    def _at_start(self) -> list[Part] | None:
        self._skip_space()
        opening = self._frame.optional_opening
        if opening and self._buffer.startswith(opening):
            self._skip(len(opening))
        elif not self._buffer or (opening and opening.startswith(self._buffer)):
            return None
        self._state = self._begun
        return []

    def _begun(self) -> list[Part] | None:
        """After the opening: a list, an object or a name, else it was no opening."""
        self._skip_space()
        if not self._buffer:
            return None
        self._closing = self._frame.closing
        if self._frame.has_list and self._buffer[0] == "[":
            self._closing = "]"
            self._skip(1)
            self._state = self._expecting_object
            return []
        if self._frame.has_names and self._buffer[0] != "{":
            return self._begin_named()
        return self._expecting_object()

    def _expecting_object(self) -> list[Part] | None:
        self._skip_space()
        if not self._buffer:
            return None
        return self._begin(JsonCall(self._names, self._num_calls)) if self._buffer[0] == "{" else self._give_back()

    def _begin_named(self) -> list[Part] | None:
        named = _NAMED.match(self._buffer)
        if named is None:
            return None if _NAMED_SO_FAR.fullmatch(self._buffer) else self._give_back()
        if named[1] not in self._names:
            return self._give_back()
        self._cut(named.end())
        return self._begin(ArgumentsCall(named[1], self._num_calls))

    def _begin(self, call: CallReader) -> list[Part]:
        self._call = call
        self._state = self._calling
        return []

    def _calling(self) -> list[Part] | None:
        call = self._call
        assert call is not None
        taken = call.feed(self._buffer)
        self._buffer = taken.rest or ""
        if call.is_call:
            self._prose.call()
            self._skipped = ""
        if taken.rest is None:
            return taken.parts
        self._call = None
        if not call.is_call:
            return self._give_back(call.text)
        self._num_calls += 1
        self._state = self._after
        return taken.parts

    def _after(self) -> list[Part] | None:
        self._skip_space()
        closing = self._closing
        if not self._buffer or (closing != self._buffer and closing.startswith(self._buffer)):
            return None
        if closing and self._buffer.startswith(closing):
            self._cut(len(closing))
            self._skipped = ""
            self._state = self._in_prose
            return []
        if self._buffer[0] in self._frame.separators:
            self._skip(1)
            self._state = self._expecting_object
            return []
        return self._give_back()

    def _give_back(self, call_text: str = "") -> list[Part]:
        text, self._skipped = self._skipped + call_text, ""
        self._state = self._in_prose
        return self._prose.say(text)

    def _skip(self, length: int) -> None:
        self._skipped += self._cut(length)

    def _skip_space(self) -> None:
        self._skip(len(self._buffer) - len(self._buffer.lstrip()))
