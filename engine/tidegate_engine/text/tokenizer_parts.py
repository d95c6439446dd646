"""What a tokenizer is made of, whatever file it came from.

Made by hf_tokenizer.py and gguf_tokenizer.py for tokenizer.py.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tokenizers import Tokenizer


@dataclass(frozen=True)
class TokenizerParts:
    """`source` names the files in errors; `special_tokens` are texts by the names templates use (bos_token, ...)."""

    backend: Tokenizer
    vocab_size: int  # one more than the largest id; a model's embedding may have more rows
    longest_token_bytes: int
    source: str
    special_tokens: Mapping[str, str]
    eos_token_ids: frozenset[int]
    chat_template: str | None


def longest_bytes(tokens: Iterable[str]) -> int:
    return max(len(token.encode()) for token in tokens)
