"""A tokenizer without files: one token a byte. The simulated runner uses it when its model directory has no tokenizer.

Sampled ids of a simulation mean nothing, so every id decodes to a printable character: streams look like text, and a
client's tokens, counts and stop strings behave as with a real model.
"""

from collections.abc import Mapping, Sequence
from functools import partial

from tidegate_engine.text.chat_template import DEFAULT_OPTIONS, ChatOptions
from tidegate_engine.text.detokenizer import NONE_SHOWN
from tidegate_engine.text.vocabulary import TokenVocabulary

PRINTABLE = "abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ.0123456789"
_CHARACTERS = [
    chr(byte)
    if chr(byte).isascii() and (chr(byte).isprintable() or chr(byte) in "\n\t")
    else PRINTABLE[byte % len(PRINTABLE)]
    for byte in range(256)
]


class ByteCodec:
    """UTF-8 bytes as token ids 0..255."""

    def __init__(self) -> None:
        self.max_token_bytes = 1
        self.eos_token_ids = frozenset({0})  # no text has it: what a simulated answer ends with

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:  # noqa: ARG002 - it has no special tokens
        return list(text.encode())

    @property
    def chat_template(self) -> str | None:
        return None

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, object]],
        options: ChatOptions = DEFAULT_OPTIONS,  # noqa: ARG002 - a rehearsal's model knows no tools
    ) -> str:
        return "".join(f"{turn['role']}: {turn['content']}\n" for turn in messages)

    def token_bytes(self, token_id: int) -> bytes:
        return _CHARACTERS[token_id % 256].encode()

    def decode(self, token_ids: Sequence[int]) -> str:
        return bytes(token_id % 256 for token_id in token_ids).decode("utf-8", "replace")

    def vocabulary(self) -> TokenVocabulary:
        """As what a grammar needs them: each its byte, also those that decode to a letter instead."""
        tokens = [bytes([byte]) for byte in range(256)]
        encode = partial(self.encode, add_special_tokens=False)
        return TokenVocabulary(tokens, self.eos_token_ids, self.eos_token_ids, encode)

    def decoder(
        self,
        prompt_token_ids: Sequence[int] = (),  # noqa: ARG002 - it has no state
        shown: frozenset[str] | None = NONE_SHOWN,  # noqa: ARG002 - it has no special tokens
    ) -> "PrintableDecoder":
        return PrintableDecoder()


class PrintableDecoder:
    """Incremental, without state: a character a token."""

    def feed(self, token_ids: Sequence[int]) -> str:
        return "".join(_CHARACTERS[token_id % 256] for token_id in token_ids)

    def flush(self) -> str:
        return ""
