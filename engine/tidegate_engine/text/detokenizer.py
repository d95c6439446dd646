"""Token ids to text, as they come: only whole characters, constant work a token, the same text however they are cut.

Works on bytes: each token stands for some bytes, a streaming UTF-8 decoder joins them. So a character spread over
tokens comes out once, when it is whole; bytes that can never become one are U+FFFD at once, without looking back.
"""

import codecs
import json
from collections.abc import Callable, Iterable, Mapping, Sequence

from tokenizers import Tokenizer as Backend

from tidegate_checkpoint.errors import UnsupportedCheckpoint

MAX_CHARACTER_BYTES = 4
_METASPACE = "▁"
NONE_SHOWN: frozenset[str] = frozenset()


class TokenBytes:
    """The bytes of each token of one tokenizer, worked out on first use; special tokens have none."""

    def __init__(self, backend: Backend) -> None:
        """Raises UnsupportedCheckpoint for a tokenizer whose decoder is neither byte-level nor SentencePiece's."""
        added = backend.get_added_tokens_decoder()
        self._backend = backend
        self.special = {token_id: token.content.encode() for token_id, token in added.items() if token.special}
        self._bytes: dict[int, bytes] = dict.fromkeys(self.special, b"")
        self._special_ids = {spelt: token_id for token_id, spelt in self.special.items()}
        self._spell, self.strips_leading_space = _decoder(backend)

    def __getitem__(self, token_id: int) -> bytes:
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self.spelt(token_id)
        return known

    def spelt(self, token_id: int) -> bytes:
        """Worked out anew and not kept; a special token as it is written."""
        # ids beyond the vocabulary are padding rows of the model's embedding: they say nothing
        token = self._backend.id_to_token(token_id)
        return b"" if token is None else self._spell(token)

    def shown(self, texts: frozenset[str] | None) -> Mapping[int, bytes]:
        """Those of the special tokens; None: all of them."""
        if texts is None:
            return self.special
        spelt = [text.encode() for text in texts]
        return {self._special_ids[text]: text for text in spelt if text in self._special_ids}


class Detokenizer:
    """One stream of text. With a prompt it continues it; without, it begins a text as decoding the whole would."""

    def __init__(
        self,
        token_bytes: TokenBytes,
        prompt_token_ids: Sequence[int] | None = None,
        shown: frozenset[str] | None = NONE_SHOWN,
    ) -> None:
        self._token_bytes = token_bytes
        self._shown = token_bytes.shown(shown)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._strips_next = token_bytes.strips_leading_space and prompt_token_ids is None
        if prompt_token_ids:
            # a prompt may end inside a character: its bytes are kept, what is whole already is not said again
            tail = b"".join(token_bytes[token_id] for token_id in prompt_token_ids[-MAX_CHARACTER_BYTES:])
            self._decoder.decode(tail[-MAX_CHARACTER_BYTES:])

    def feed(self, token_ids: Iterable[int]) -> str:
        """The text that these tokens complete; may be empty."""
        spelt = [self._token_bytes[token_id] or self._shown.get(token_id, b"") for token_id in token_ids]
        return self._emit(b"".join(spelt), final=False)

    def flush(self) -> str:
        """What is left at the end: U+FFFD for half a character."""
        return self._emit(b"", final=True)

    def _emit(self, data: bytes, *, final: bool) -> str:
        text = self._decoder.decode(data, final)
        if text and self._strips_next:
            self._strips_next = False
            return text.removeprefix(" ")
        return text


def decode(token_bytes: TokenBytes, token_ids: Iterable[int]) -> str:
    """A whole text at once."""
    detokenizer = Detokenizer(token_bytes)
    return detokenizer.feed(token_ids) + detokenizer.flush()


def _decoder(backend: Backend) -> tuple[Callable[[str], bytes], bool]:
    """How a token is spelt in bytes, and whether a text's first space is the tokenizer's own."""
    if backend.decoder is None:
        return (lambda token: b" " + token.encode()), True  # tokens are words
    steps = _steps(json.loads(backend.decoder.__getstate__()))
    kinds = [str(step["type"]) for step in steps]
    if kinds == ["ByteLevel"]:
        return _byte_level, False
    if set(kinds) <= {"Replace", "ByteFallback", "Fuse", "Strip"} and "ByteFallback" in kinds:
        return _byte_fallback, "Strip" in kinds
    raise UnsupportedCheckpoint(
        f"the tokenizer's decoder ({', '.join(kinds)}) is not supported; supported are byte-level and byte-fallback BPE"
    )


def _steps(decoder: dict[str, object]) -> list[dict[str, object]]:
    steps = decoder.get("decoders")
    return steps if isinstance(steps, list) else [decoder]


def byte_alphabet() -> dict[str, int]:
    """GPT-2's spelling of the 256 bytes by printable characters: those that print stand for themselves."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(others)}


_ALPHABET = byte_alphabet()


def _byte_level(token: str) -> bytes:
    try:
        return bytes(_ALPHABET[character] for character in token)
    except KeyError:  # an added token is plain text
        return token.encode()


def _byte_fallback(token: str) -> bytes:
    if len(token) == len("<0x00>") and token.startswith("<0x") and token.endswith(">"):
        try:
            return bytes.fromhex(token[3:5])
        except ValueError:
            pass
    return token.replace(_METASPACE, " ").encode()
