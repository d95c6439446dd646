"""Compiles what clients hold their answers to. The check at the door is the compilation itself: what passes it runs.

Work happens on one thread of this module's own, because the grammar library recurses as deep as a grammar's rules refer
to each other: a chain of a thousand would overflow a usual stack and end the process. So prompts are tokenized while
grammars compile. A table of the whole vocabulary is built once, before the engine serves (262,144 tokens:
about two seconds).
"""

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from tidegate_engine.errors import BadGrammar
from tidegate_engine.grammar.base import TokenConstraint
from tidegate_engine.grammar.matcher import GrammarMatcher, error_of
from tidegate_engine.grammar.spec import GrammarSpec, library_grammar
from tidegate_engine.text.vocabulary import TokenVocabulary

T = TypeVar("T")
STACK_BYTES = 256 * 2**20  # address space; the longest chain that MAX_SPEC_BYTES has room for touches 100 MiB of it

# Within these a grammar compiles in about a second and the costliest step takes some 50 ms. With the library's own fuel
# of a million, repeats within repeats such as ((a{100}){100}){100} keep it for ten seconds.
LIMITS = LLParserLimits(
    max_grammar_size=20_000, max_items_in_row=10_000, initial_lexer_fuel=200_000, verbose_errors=False
)


class GrammarCompiler:
    """One a process. `load_vocabulary` is called once, by prepare() or with the first grammar."""

    def __init__(self, load_vocabulary: Callable[[], TokenVocabulary]) -> None:
        self._load_vocabulary = load_vocabulary
        self._tokenizer: LLTokenizer | None = None
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="grammar")

    def prepare(self) -> Future[None]:
        """Makes the table now; without it the first grammar waits for it, and everybody with it."""
        return self._start(self._prepare)

    def submit(self, spec: GrammarSpec) -> Future[TokenConstraint]:
        """Done after up to seconds. Its result raises BadGrammar, whose message says what is wrong with the grammar."""
        return self._start(partial(self._compile, spec))

    def compile(self, spec: GrammarSpec) -> TokenConstraint:
        """Waits for it."""
        return self.submit(spec).result()

    def _start(self, work: Callable[[], T]) -> Future[T]:
        before = threading.stack_size(STACK_BYTES)
        try:
            return self._executor.submit(work)  # starts the thread, the first time
        finally:
            threading.stack_size(before)

    def close(self) -> None:
        """Ends the thread."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _prepare(self) -> None:
        with contextlib.suppress(BadGrammar):  # a model without end tokens serves without grammars
            self._table()

    def _compile(self, spec: GrammarSpec) -> TokenConstraint:
        grammar = library_grammar(spec)
        matcher = LLMatcher(self._table(), grammar, log_level=0, limits=LIMITS)
        _check(spec, matcher)
        mask = matcher.compute_bitmask()  # a grammar that no text matches fails only now
        _check(spec, matcher)
        after_a_token = matcher.deep_copy()  # and one that is too costly to follow mostly with its first token
        after_a_token.consume_token(_first_token(mask))
        after_a_token.compute_bitmask()
        _check(spec, after_a_token)
        return GrammarMatcher(matcher)

    def _table(self) -> LLTokenizer:
        if self._tokenizer is None:
            vocabulary = self._load_vocabulary()
            if not vocabulary.eos_token_ids:
                raise BadGrammar("this model's files name no end token, so an answer cannot be held to a grammar")
            eos_token_ids = sorted(vocabulary.eos_token_ids)
            self._tokenizer = LLTokenizer(TokenizerWrapper(_LibraryTokens(vocabulary)), eos_token=eos_token_ids)
        return self._tokenizer


def _first_token(mask: bytes) -> int:
    """Of those that may come."""
    byte = next(index for index, bits in enumerate(mask) if bits)
    return 8 * byte + next(bit for bit in range(8) if mask[byte] >> bit & 1)


def _check(spec: GrammarSpec, matcher: LLMatcher) -> None:
    if matcher.is_error():
        raise BadGrammar(f"the {spec.kind} cannot be compiled: {_reason(matcher)}")


def _reason(matcher: LLMatcher) -> str:
    reason = error_of(matcher)
    return "no text matches it" if reason.startswith("NoExtension") else reason


class _LibraryTokens:
    """A vocabulary with the names the library looks for."""

    def __init__(self, vocabulary: TokenVocabulary) -> None:
        self.tokens = vocabulary.tokens
        self.special_token_ids = sorted(vocabulary.special_token_ids)
        self.eos_token_id = min(vocabulary.eos_token_ids)
        self.bos_token_id: int | None = None
        self._encode = vocabulary.encode

    def __call__(self, text: str | bytes) -> list[int]:
        return self._encode(text.decode("utf-8", "replace") if isinstance(text, bytes) else text)
