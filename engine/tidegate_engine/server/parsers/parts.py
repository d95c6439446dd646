"""What a chat answer consists of, in the order it comes. Readers make parts of text, rendering.py writes them.

Whatever a reader is fed comes out again: as a part, or as content where it is no valid call. Only white space beside
calls and reasoning is dropped, which templates put there and clients do not want.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Content(NamedTuple):
    text: str


class Reasoning(NamedTuple):
    text: str


class CallStart(NamedTuple):
    """A tool call begins; its arguments follow in pieces."""

    number: int
    name: str


class CallArguments(NamedTuple):
    """More of a call's arguments, as the model wrote them: all pieces together are its JSON."""

    number: int
    text: str


Part = Content | Reasoning | CallStart | CallArguments


class PartReader(Protocol):
    """One answer's text in, parts out. flush() gives what is left at the end and is called once."""

    def feed(self, text: str) -> list[Part]: ...

    def flush(self) -> list[Part]: ...


class PlainReader:
    """Everything is content."""

    def feed(self, text: str) -> list[Part]:
        return [Content(text)] if text else []

    def flush(self) -> list[Part]:
        return []


class Prose:
    """The content around calls: white space waits until it is known whether a call is beside it."""

    def __init__(self) -> None:
        self._space = ""
        self._is_after_call = False

    def say(self, text: str) -> list[Part]:
        text = self._space + text
        said = text.rstrip()
        self._space = text[len(said) :]
        return [Content(said)] if said else []

    def call(self) -> None:
        """A call begins here."""
        self._space = ""
        self._is_after_call = True

    def end(self) -> list[Part]:
        """White space at the very end is content, unless a call came before it."""
        return [Content(self._space)] if self._space and not self._is_after_call else []


def joined(parts: Sequence[Part]) -> list[Part]:
    """Neighbours of one kind, and of one call, become one."""
    merged: list[Part] = []
    for part in parts:
        match merged[-1] if merged else None, part:
            case Content(before), Content(text):
                merged[-1] = Content(before + text)
            case Reasoning(before), Reasoning(text):
                merged[-1] = Reasoning(before + text)
            case CallArguments(number, before), CallArguments(same, text) if number == same:
                merged[-1] = CallArguments(number, before + text)
            case _:
                merged.append(part)
    return merged
