"""A choice's text as it grows: token chunks in, deltas out; no text past a stop string ever leaves.

Pure and independent of how tokens were grouped into chunks. The routes keep one ChoiceText per choice.

    decoded so far:   |<------- sent ------->|<-- held: may become a stop string -->|
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tidegate_engine.request import FinishReason


class TextDecoder(Protocol):
    """Incremental detokenizer: only whole characters come out, flush() gives what is left at the end."""

    def feed(self, token_ids: Sequence[int]) -> str: ...

    def flush(self) -> str: ...


@dataclass(frozen=True)
class Delta:
    """New text of one choice; `finish_reason` closes it."""

    text: str
    finish_reason: FinishReason | None = None


class ChoiceText:
    """One choice: decodes, watches for stop strings, counts tokens."""

    def __init__(self, decoder: TextDecoder, stop_strings: tuple[str, ...] = ()) -> None:
        self.num_tokens = 0
        self.finish_reason: FinishReason | None = None
        self._decoder = decoder
        self._stops = stop_strings
        self._held = ""

    def feed(self, token_ids: Sequence[int], finish_reason: FinishReason | None, *, is_all_text: bool = False) -> Delta:
        """The token that stopped the engine (EOS, a stop token) counts as generated but is not text.

        `is_all_text`: there is none, a grammar was complete.
        """
        assert self.finish_reason is None, "a finished choice takes no more tokens"
        # Token by token where a stop string may end the text, so that tokens after it are not counted.
        groups = [(token_id,) for token_id in token_ids] if self._stops and token_ids else [token_ids]
        text = ""
        for number, group in enumerate(groups, 1):
            delta = self._feed(group, finish_reason if number == len(groups) else None, is_all_text=is_all_text)
            text += delta.text
            if delta.finish_reason is not None:
                break
        return Delta(text, delta.finish_reason)

    def _feed(self, token_ids: Sequence[int], finish_reason: FinishReason | None, *, is_all_text: bool) -> Delta:
        self.num_tokens += len(token_ids)
        visible = token_ids[:-1] if finish_reason is FinishReason.STOP and not is_all_text else token_ids
        text = self._held + self._decoder.feed(visible)
        if finish_reason is not None:
            text += self._decoder.flush()
        if (cut := find_stop(text, self._stops)) is not None:
            return self._close(text[:cut], FinishReason.STOP)
        if finish_reason is not None:
            return self._close(text, finish_reason)
        num_held = held_length(text, self._stops)
        self._held = text[len(text) - num_held :]
        return Delta(text[: len(text) - num_held])

    def _close(self, text: str, reason: FinishReason) -> Delta:
        self._held = ""
        self.finish_reason = reason
        return Delta(text, reason)


def find_stop(text: str, stops: tuple[str, ...]) -> int | None:
    """Where to cut: the start of the stop string that is complete first; of several that end together, the longest."""
    matches = [(start + len(stop), start) for stop in stops if (start := text.find(stop)) >= 0]
    return min(matches)[1] if matches else None


def held_length(text: str, stops: tuple[str, ...]) -> int:
    """Length of the longest tail of `text` that a stop string begins with."""
    return max((_overlap(text, stop) for stop in stops), default=0)


def _overlap(text: str, stop: str) -> int:
    longest = min(len(text), len(stop) - 1)
    return next((length for length in range(longest, 0, -1) if text.endswith(stop[:length])), 0)
