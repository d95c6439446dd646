"""What a tokenizer is made of, whatever file it came from: made by hf_tokenizer and gguf_tokenizer for tokenizer.py."""

from collections.abc import Mapping
from dataclasses import dataclass

from tokenizers import Tokenizer


@dataclass(frozen=True)
class TokenizerParts:
    """`source` names the files in errors; `special_tokens` are texts by the names templates use (bos_token, ...)."""

    backend: Tokenizer
    source: str
    special_tokens: Mapping[str, str]
    eos_token_ids: frozenset[int]
    chat_template: str | None
