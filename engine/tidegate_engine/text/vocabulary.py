"""A tokenizer's tokens as bytes: what a grammar is held against. Made on first use by grammar/compiler.py."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class TokenVocabulary:
    """Token ids are indices into `tokens`; a special token is no text, whatever its bytes spell."""

    tokens: Sequence[bytes]
    special_token_ids: frozenset[int]
    eos_token_ids: frozenset[int]
    encode: Callable[[str], list[int]]
