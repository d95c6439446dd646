"""A tokenizer without files: one token a byte. The simulated runner uses it when its model directory has no tokenizer.

Sampled ids of a simulation mean nothing, so every id decodes to a printable character: streams look like text, and a
client's tokens, counts and stop strings behave as with a real model.
"""

from collections.abc import Mapping, Sequence

PRINTABLE = "abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ.0123456789"


class ByteCodec:
    """UTF-8 bytes as token ids 0..255; the vocabulary is the runner's, so that any id it samples is legal."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.max_token_bytes = 1

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:  # noqa: ARG002 - it has no special tokens
        return list(text.encode())

    def encode_chat(self, turns: Sequence[Mapping[str, str]]) -> list[int]:
        return list("".join(f"{turn['role']}: {turn['content']}\n" for turn in turns).encode())

    def decode(self, token_ids: Sequence[int]) -> str:
        return bytes(token_id % 256 for token_id in token_ids).decode("utf-8", "replace")

    def decoder(self) -> "PrintableDecoder":
        return PrintableDecoder()


class PrintableDecoder:
    """Incremental, without state: a character a token."""

    def feed(self, token_ids: Sequence[int]) -> str:
        return "".join(PRINTABLE[token_id % len(PRINTABLE)] for token_id in token_ids)

    def flush(self) -> str:
        return ""
