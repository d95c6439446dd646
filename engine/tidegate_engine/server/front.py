"""What the routes stand on: the engine, the tokenizer and the facts of the served model, behind small protocols.

`serve` builds the one Front of a process; tests build it over the simulated runner.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import Protocol

from tidegate_core.telemetry import LoadReport
from tidegate_engine.counters import Counters
from tidegate_engine.grammar.base import TokenConstraint
from tidegate_engine.grammar.spec import GrammarSpec
from tidegate_engine.request import SamplingParams, Terms, TokenChunk, default_max_tokens
from tidegate_engine.server.bodies import BodyLimits
from tidegate_engine.server.errors import ApiError, bad_request, unknown_model
from tidegate_engine.server.parsers.choice import PLAIN_ANSWERS, AnswerFormat
from tidegate_engine.server.stream import TextDecoder
from tidegate_engine.text.chat_template import ChatOptions
from tidegate_engine.text.vocabulary import TokenVocabulary

PING_SECONDS = 15.0


class TokenStream(Protocol):
    """Tokens of one request. cancel() frees its KV and may be called at any time, any number of times."""

    @property
    def wait_seconds(self) -> float:
        """What it was expected to wait when it was accepted."""
        ...

    def __aiter__(self) -> AsyncIterator[TokenChunk]: ...

    def cancel(self) -> None: ...

    def complete(self) -> None:
        """Frees it too, and counts the request as complete: a stop string has ended its text."""
        ...


class Engine(Protocol):
    """The asyncio side of the engine loop."""

    @property
    def counters(self) -> Counters: ...

    @property
    def is_draining(self) -> bool: ...

    @property
    def is_stuck(self) -> bool: ...

    @property
    def num_waiting(self) -> int: ...

    @property
    def most_at_once(self) -> int:
        """Requests that an idle engine accepts together."""
        ...

    def submit(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        sampling: SamplingParams,
        terms: Terms,
        constraint: TokenConstraint | None,
    ) -> TokenStream:
        """Raises Refused, BadRequest or EngineFailed."""
        ...

    def load(self) -> LoadReport: ...


class TextCodec(Protocol):
    """A tokenizer. All calls may take long and release the GIL: they run in the front's executor."""

    @property
    def eos_token_ids(self) -> frozenset[int]: ...

    @property
    def max_token_bytes(self) -> int:
        """No text longer than n times this fits into n tokens."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...

    def decode(self, token_ids: Sequence[int]) -> str: ...

    @property
    def chat_template(self) -> str | None:
        """Its text."""
        ...

    def apply_chat_template(self, messages: Sequence[Mapping[str, object]], options: ChatOptions) -> str:
        """The prompt's text, special tokens and all. Raises BadRequest if there is no template or it refuses."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """How one token is written, special or not; quick."""
        ...

    def vocabulary(self) -> TokenVocabulary:
        """Of all tokens, for grammars."""
        ...

    def decoder(self, prompt_token_ids: Sequence[int], shown: frozenset[str] | None) -> TextDecoder:
        """A fresh incremental decoder for one choice, which continues the prompt; None shows all special tokens."""
        ...


class Grammars(Protocol):
    """Compiles what answers are held to."""

    def submit(self, spec: GrammarSpec) -> Future[TokenConstraint]:
        """Done after up to seconds. Its result raises BadGrammar."""
        ...


@dataclass
class Backlog:
    """Prompts and grammars in their threads: bounded, so that clients are told instead of kept waiting unseen."""

    max_jobs: int = 128
    num_jobs: int = 0


@dataclass(frozen=True)
class ServedModel:
    """Facts a client may see or be refused by."""

    names: tuple[str, ...]
    context: int
    vocab_size: int
    output_tokens: int
    created: int
    runner: str
    is_simulation: bool = False

    def check_name(self, name: str) -> None:
        if name not in self.names:
            raise unknown_model(name, self.names)

    def check_length(self, num_prompt: int) -> None:
        """Raises ApiError unless a prompt of so many tokens leaves room for an answer."""
        if num_prompt >= self.context:
            raise prompt_too_long(f"the prompt has {num_prompt} tokens", self.context)

    def new_tokens(self, num_prompt: int, wanted: int | None) -> int:
        """Tokens to reserve: the client's limit, cut to the room left, or a finite default."""
        self.check_length(num_prompt)
        room = self.context - num_prompt
        return min(room, wanted) if wanted else default_max_tokens(self.context, num_prompt, self.output_tokens)


def prompt_too_long(what: str, context: int) -> ApiError:
    return bad_request(
        f"{what}, but this model's context is {context} tokens including the answer; shorten it",
        param="prompt",
        code="context_length_exceeded",
    )


@dataclass(frozen=True)
class Front:
    """One process's serving parts."""

    engine: Engine
    codec: TextCodec
    model: ServedModel
    executor: Executor
    wall_clock: Callable[[], float]
    ping_seconds: float = PING_SECONDS
    answers: AnswerFormat = PLAIN_ANSWERS
    grammars: Grammars | None = None
    backlog: Backlog = field(default_factory=Backlog)

    @property
    def max_prompt_bytes(self) -> int:
        return self.model.context * self.codec.max_token_bytes

    @property
    def body_limits(self) -> BodyLimits:
        """A full context as text, at worst JSON-escaped (6 bytes for one), and the other fields."""
        return BodyLimits(max_bytes=2**20 + 6 * self.max_prompt_bytes)
