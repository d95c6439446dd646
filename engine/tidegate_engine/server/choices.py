"""One choice of an answer: its engine stream, its text, and what the text means. generation.py drives them.

TokenChunk --ChoiceText--> text, stop strings cut --PartReader--> content, reasoning, tool calls --> Piece
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tidegate_engine.grammar.base import TokenConstraint
from tidegate_engine.request import FinishReason, SamplingParams, Terms, TokenChunk, TokenLogprobs
from tidegate_engine.server.front import TextCodec, TokenStream
from tidegate_engine.server.parsers.parts import CallStart, Content, Part, PartReader, PlainReader, joined
from tidegate_engine.server.parsers.reasoning import ReasoningReader
from tidegate_engine.server.stream import NO_STOPS, ChoiceText, PlacedToken, Stopping, single_tokens


@dataclass(frozen=True)
class ChoicePlan:
    """A choice ready to run. `shown`: special tokens that are part of the text, None for all of them."""

    prompt: Sequence[int]
    sampling: SamplingParams
    terms: Terms
    stopping: Stopping = NO_STOPS
    echo: str | None = None
    shown: frozenset[str] | None = frozenset()
    allows_several_calls: bool = True
    constraint: TokenConstraint | None = None
    make_reader: Callable[[], PartReader] = PlainReader


@dataclass(frozen=True)
class Piece:
    """What a choice grew by; `finish_reason` closes it."""

    parts: tuple[Part, ...] = ()
    finish_reason: FinishReason | None = None
    has_calls: bool = False  # in this piece or before
    tokens: tuple[PlacedToken, ...] = ()
    prompt_tokens: tuple[TokenLogprobs | None, ...] = ()

    @property
    def says_nothing(self) -> bool:
        return not self.parts and self.finish_reason is None


@dataclass
class Choice:
    """See the module. `stream` is set when the engine has accepted it."""

    index: int
    plan: ChoicePlan
    stream: TokenStream
    text: ChoiceText
    reader: PartReader
    num_cached_tokens: int = 0
    num_reasoning_tokens: int = 0
    num_calls: int = 0
    _unsent: list[PlacedToken] = field(default_factory=list)
    _has_begun: bool = False

    @classmethod
    def begin(cls, index: int, plan: ChoicePlan, stream: TokenStream, codec: TextCodec) -> "Choice":
        text = ChoiceText(codec.decoder(plan.prompt, plan.shown), plan.stopping)
        return cls(index, plan, stream, text, plan.make_reader())

    def take(self, chunk: TokenChunk) -> Piece:
        """What a chunk of tokens adds."""
        self.num_cached_tokens += chunk.num_cached_tokens
        parts: list[Part] = self._opening()
        reason: FinishReason | None = None
        for part in single_tokens(chunk) if self._reads_single_tokens else [chunk]:
            parts += self._read(part)
            if (reason := self.text.finish_reason) is not None:
                break
        piece = Piece(tuple(joined(parts)), reason, self.num_calls > 0, (), chunk.prompt_logprobs)
        return piece if piece.says_nothing and not piece.prompt_tokens else self._with_tokens(piece)

    def _opening(self) -> list[Part]:
        is_first, self._has_begun = not self._has_begun, True
        return [Content(self.plan.echo)] if is_first and self.plan.echo else []

    def _read(self, chunk: TokenChunk) -> list[Part]:
        was_reasoning = self._is_reasoning
        delta = self.text.feed(chunk)
        self._unsent += delta.tokens
        parts = self.reader.feed(delta.text)
        if delta.finish_reason is not None:
            parts += self.reader.flush()
        if was_reasoning or self._is_reasoning:
            self.num_reasoning_tokens += len(chunk.token_ids)
        return self._counted(parts)

    def _counted(self, parts: list[Part]) -> list[Part]:
        """Counts calls; where only one is allowed, the answer ends before the second."""
        for number, part in enumerate(parts):
            if isinstance(part, CallStart):
                if self.num_calls and not self.plan.allows_several_calls:
                    self.text.finish_reason = FinishReason.STOP
                    return parts[:number]
                self.num_calls += 1
        return parts

    def _with_tokens(self, piece: Piece) -> Piece:
        tokens, self._unsent = tuple(self._unsent), []
        return Piece(piece.parts, piece.finish_reason, piece.has_calls, tokens, piece.prompt_tokens)

    @property
    def _reads_single_tokens(self) -> bool:
        """Where reasoning is counted, or a second call may end the answer: what comes after it does not count."""
        return isinstance(self.reader, ReasoningReader) or not self.plan.allows_several_calls

    @property
    def _is_reasoning(self) -> bool:
        return isinstance(self.reader, ReasoningReader) and self.reader.is_reasoning


@dataclass(frozen=True)
class WholeChoice:
    """A finished choice."""

    parts: tuple[Part, ...]
    finish_reason: FinishReason
    tokens: tuple[PlacedToken, ...] | None = None  # None: no log probabilities were asked for
    prompt_tokens: tuple[TokenLogprobs | None, ...] = ()
    prompt: Sequence[int] = ()
    echo: str | None = None

    @property
    def has_calls(self) -> bool:
        return any(isinstance(part, CallStart) for part in self.parts)


def whole_choice(choice: Choice, pieces: Sequence[Piece]) -> WholeChoice:
    asked = choice.plan.sampling.num_logprobs is not None
    return WholeChoice(
        parts=tuple(joined([part for piece in pieces for part in piece.parts])),
        finish_reason=choice.text.finish_reason or FinishReason.STOP,
        tokens=tuple(token for piece in pieces for token in piece.tokens) if asked else None,
        prompt_tokens=tuple(token for piece in pieces for token in piece.prompt_tokens),
        prompt=choice.plan.prompt,
        echo=choice.plan.echo,
    )
