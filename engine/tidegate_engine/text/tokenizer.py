"""Text to token ids and back, for the server: one class whatever files the model has.

Loaded once at start; safe to call from several threads. Encoding releases the GIL, so that a long prompt in a worker
thread does not stop the event loop.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from tokenizers import Tokenizer as Backend

from tidegate_checkpoint.gguf import read_gguf
from tidegate_checkpoint.location import CheckpointKind, Location, locate, reading
from tidegate_engine.errors import BadRequest
from tidegate_engine.text.chat_template import DEFAULT_OPTIONS, ChatOptions, ChatTemplate, NoChatTemplate
from tidegate_engine.text.detokenizer import NONE_SHOWN, Detokenizer, TokenBytes, decode
from tidegate_engine.text.tokenizer_parts import TokenizerParts
from tidegate_engine.text.tool_prompt import without_tools
from tidegate_engine.text.vocabulary import TokenVocabulary

# Unicode normalization may make a text shorter by this factor before it is tokenized (three letters to one syllable).
COMPOSITION_RATIO = 3


def load_tokenizer(path: Path, chat_template: str | None = None) -> "Tokenizer":
    """Of a model directory or GGUF file; a given template text goes before the model's own.

    Raises CheckpointError, or BadLaunch for a template that is not valid.
    """
    with reading(path):
        parts = _read_parts(locate(path))
    if chat_template is not None:
        return Tokenizer(parts, ChatTemplate(chat_template, "the given chat template"))
    if parts.chat_template is not None:
        return Tokenizer(parts, ChatTemplate(parts.chat_template, f"the chat template of {parts.source}"))
    return Tokenizer(parts, None)


def _read_parts(location: Location) -> TokenizerParts:
    if location.kind is CheckpointKind.GGUF:
        from tidegate_engine.text.gguf_tokenizer import gguf_tokenizer_parts

        return gguf_tokenizer_parts(read_gguf(location.path))
    from tidegate_engine.text.hf_tokenizer import hf_tokenizer_parts

    return hf_tokenizer_parts(location.path)


class Tokenizer:
    """See load_tokenizer. No text longer than n times `max_token_bytes` fits into n tokens."""

    def __init__(self, parts: TokenizerParts, template: ChatTemplate | None) -> None:
        self._backend = parts.backend
        self._source = parts.source
        self._special_tokens = parts.special_tokens
        self._template = template
        self._token_bytes = TokenBytes(parts.backend)
        self.eos_token_ids = parts.eos_token_ids
        self.vocab_size = parts.vocab_size
        self.max_token_bytes = parts.longest_token_bytes * _composition_ratio(parts.backend)
        bos = parts.special_tokens.get("bos_token")
        self.bos_token_id: int | None = parts.backend.token_to_id(bos) if bos else None

    @property
    def has_chat_template(self) -> bool:
        return self._template is not None

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids; BOS is there once, also when the text spells it. Raises BadRequest for broken Unicode."""
        try:
            # encode() would hold the GIL; the batch call releases it and leaves out the offsets nobody reads
            ids = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        except (UnicodeError, TypeError) as error:
            raise BadRequest("the text has half of a surrogate pair; send valid Unicode") from error
        has_two = add_special_tokens and self.bos_token_id is not None and ids[:2] == [self.bos_token_id] * 2
        return ids[1:] if has_two else ids

    @property
    def chat_template(self) -> str | None:
        """Its text, which tells how the model writes calls and reasoning."""
        return None if self._template is None else self._template.text

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, object]], options: ChatOptions = DEFAULT_OPTIONS
    ) -> str:
        """The prompt text, special tokens and all. Raises NoChatTemplate, ChatRefused."""
        if self._template is None:
            raise NoChatTemplate(
                f"{self._source} has no chat template; use /v1/completions, or start with --chat-template FILE "
                "(a pool: spec.model.chatTemplate)"
            )
        if not self._template.takes_tools:
            messages, options = without_tools(messages, options)
        return self._template.render(messages, self._special_tokens, options)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Without special tokens; bytes that are no character are U+FFFD."""
        return decode(self._token_bytes, token_ids)

    def vocabulary(self) -> TokenVocabulary:
        """Every token's bytes, for grammars; takes half a second for 262,144 tokens."""
        added = self._backend.get_added_tokens_decoder()
        return TokenVocabulary(
            tokens=[self._token_bytes.spelt(token_id) for token_id in range(self.vocab_size)],
            special_token_ids=frozenset(token_id for token_id, token in added.items() if token.special),
            eos_token_ids=self.eos_token_ids,
            encode=partial(self.encode, add_special_tokens=False),
        )

    def decoder(self, prompt_token_ids: Sequence[int] = (), shown: frozenset[str] | None = NONE_SHOWN) -> Detokenizer:
        """For text that continues a prompt, as it is generated. Special tokens come out if shown; None shows all."""
        return Detokenizer(self._token_bytes, prompt_token_ids, shown)

    def token_bytes(self, token_id: int) -> bytes:
        """How one token is written, special or not."""
        return self._token_bytes[token_id] or self._token_bytes.special.get(token_id, b"")


def _composition_ratio(backend: Backend) -> int:
    composes = backend.normalizer is not None and b'"NF' in backend.normalizer.__getstate__()
    return COMPOSITION_RATIO if composes else 1
