"""A choice's text as it grows: token chunks in, deltas out; no text past a stop string ever leaves.

Pure and independent of how tokens were grouped into chunks. choices.py keeps one ChoiceText per choice.

    decoded so far:   |<------- sent ------->|<-- held: may become a stop string -->|
    its tokens:       |  a |  b  |   c  |  d    (waits for its text)  |  e |
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from tidegate_engine.request import FinishReason, TokenChunk, TokenLogprobs


class TextDecoder(Protocol):
    """Incremental detokenizer: only whole characters come out, flush() gives what is left at the end."""

    def feed(self, token_ids: Sequence[int]) -> str: ...

    def flush(self) -> str: ...


class PlacedToken(NamedTuple):
    """A token's log probabilities and where its text begins in the choice's text."""

    logprobs: TokenLogprobs
    start: int


@dataclass(frozen=True)
class Delta:
    """New text of one choice, and the tokens that are out with it; `finish_reason` closes it."""

    text: str
    finish_reason: FinishReason | None = None
    tokens: tuple[PlacedToken, ...] = ()


class Stopping(NamedTuple):
    """Which strings end the text, after `min_tokens`; `keeps_end`: it includes the string or token that ends it."""

    strings: tuple[str, ...] = ()
    keeps_end: bool = False
    min_tokens: int = 0


NO_STOPS = Stopping()


class ChoiceText:
    """One choice: decodes, watches for stop strings, counts tokens."""

    def __init__(self, decoder: TextDecoder, stopping: Stopping = NO_STOPS) -> None:
        self.num_tokens = 0
        self.finish_reason: FinishReason | None = None
        self._decoder = decoder
        self._stopping = stopping
        self._held = ""
        self._tokens = _TokenPlaces()

    def feed(self, chunk: TokenChunk) -> Delta:
        """The token that stopped the engine (EOS, a stop token) counts as generated but is not text, unless kept."""
        assert self.finish_reason is None, "a finished choice takes no more tokens"
        text = ""
        tokens: tuple[PlacedToken, ...] = ()
        # Token by token where a text may end inside, so that tokens after it are not counted.
        for part in single_tokens(chunk) if self._stopping.strings or chunk.logprobs else [chunk]:
            delta = self._feed(part)
            text += delta.text
            tokens += delta.tokens
            if delta.finish_reason is not None:
                break
        return Delta(text, delta.finish_reason, tokens)

    def _feed(self, chunk: TokenChunk) -> Delta:
        self.num_tokens += len(chunk.token_ids)
        ends_in_stop_token = chunk.finish_reason is FinishReason.STOP and not chunk.is_all_text
        visible = chunk.token_ids[:-1] if ends_in_stop_token and not self._stopping.keeps_end else chunk.token_ids
        new = self._decoder.feed(visible)
        if chunk.logprobs and visible:
            self._tokens.add(chunk.logprobs[0], len(new))
        if chunk.finish_reason is not None:
            new += self._decoder.flush()
        return self._released(self._held + new, chunk.finish_reason)

    def _released(self, text: str, finish_reason: FinishReason | None) -> Delta:
        stops = self._stopping.strings if self.num_tokens > self._stopping.min_tokens else ()
        if (found := find_stop(text, stops)) is not None:
            start, end = found
            return self._close(text[: end if self._stopping.keeps_end else start], FinishReason.STOP, is_cut=True)
        if finish_reason is not None:
            return self._close(text, finish_reason, is_cut=False)
        num_sent = len(text) - held_length(text, stops)
        self._held = text[num_sent:]
        return Delta(text[:num_sent], None, self._tokens.release(num_sent))

    def _close(self, text: str, reason: FinishReason, *, is_cut: bool) -> Delta:
        self._held = ""
        self.finish_reason = reason
        return Delta(text, reason, self._tokens.close(len(text), is_cut=is_cut))


class _TokenPlaces:
    """Tokens whose text is not out yet, in order."""

    def __init__(self) -> None:
        self._waiting: list[tuple[PlacedToken, int]] = []  # each with where its text ends
        self._num_decoded = 0
        self._num_sent = 0

    def add(self, logprobs: TokenLogprobs, num_characters: int) -> None:
        start = self._num_decoded
        self._num_decoded += num_characters
        self._waiting.append((PlacedToken(logprobs, start), self._num_decoded))

    def release(self, num_characters: int) -> tuple[PlacedToken, ...]:
        """Those whose whole text is out when so many more characters are."""
        if not self._waiting and not num_characters:
            return ()
        self._num_sent += num_characters
        num_out = next(
            (number for number, (_, end) in enumerate(self._waiting) if end > self._num_sent), len(self._waiting)
        )
        out, self._waiting = self._waiting[:num_out], self._waiting[num_out:]
        return tuple(token for token, _ in out)

    def close(self, num_characters: int, *, is_cut: bool) -> tuple[PlacedToken, ...]:
        """The rest, but for tokens that begin where the text was cut or later."""
        end = self._num_sent + num_characters
        return tuple(token for token, _ in self._waiting if not is_cut or token.start < end)


def single_tokens(chunk: TokenChunk) -> list[TokenChunk]:
    """The same tokens one by one; what concerns the prompt stays with the first, the end with the last."""
    if len(chunk.token_ids) <= 1:
        return [chunk]
    last = len(chunk.token_ids) - 1
    return [
        TokenChunk(
            (token_id,),
            chunk.finish_reason if number == last else None,
            chunk.logprobs[number : number + 1],
            chunk.prompt_logprobs if number == 0 else (),
            chunk.num_cached_tokens if number == 0 else 0,
            chunk.is_all_text and number == last,
        )
        for number, token_id in enumerate(chunk.token_ids)
    ]


def find_stop(text: str, stops: tuple[str, ...]) -> tuple[int, int] | None:
    """Start and end of the stop string that is complete first; of several that end together, the longest."""
    matches = [(start + len(stop), start) for stop in stops if (start := text.find(stop)) >= 0]
    if not matches:
        return None
    end, start = min(matches)
    return start, end


def held_length(text: str, stops: tuple[str, ...]) -> int:
    """Length of the longest tail of `text` that a stop string begins with."""
    return max((_overlap(text, stop) for stop in stops), default=0)


def _overlap(text: str, stop: str) -> int:
    longest = min(len(text), len(stop) - 1)
    return next((length for length in range(longest, 0, -1) if text.endswith(stop[:length])), 0)
