"""A GGUF file's tokens, their types and the special ones among them, read once and checked.

Read by gguf_tokenizer.py, which makes a tokenizer of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tidegate_checkpoint.errors import CorruptCheckpoint
from tidegate_checkpoint.gguf import GgufFile

PREFIX = "tokenizer.ggml"
CONTROL, USER_DEFINED = 3, 4  # token types of the format
_SPECIAL = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
# Files converted from base models name the end of a text alone, though their vocabulary has an end of turn.
_TURN_ENDS = frozenset({"<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<end_of_turn>", "<|end|>", "<|endoftext|>"})


@dataclass(frozen=True)
class GgufVocabulary:
    """`tokens` by id, spelled as the file does; `kinds` their types, empty in files that tell none."""

    file: GgufFile
    tokens: list[str] = field(repr=False)
    kinds: list[float] = field(repr=False)

    def special_id(self, stem: str) -> int | None:
        """The id under `<stem>_token_id`, if the file has one. Raises CorruptCheckpoint for one beyond the tokens."""
        key = f"{PREFIX}.{stem}_token_id"
        if key not in self.file.metadata:
            return None
        token_id = self.file.integer(key)
        if not 0 <= token_id < len(self.tokens):
            raise CorruptCheckpoint(f"{self.file.path}: '{key}' is {token_id}, there are {len(self.tokens)} tokens")
        return token_id

    def special_tokens(self) -> Mapping[str, str]:
        """Texts by the names that templates use."""
        ids = {name: self.special_id(stem) for name, stem in _SPECIAL.items()}
        return {name: self.tokens[token_id] for name, token_id in ids.items() if token_id is not None}

    def eos_ids(self) -> frozenset[int]:
        """The end of a text, and of a turn."""
        named = {token_id for stem in ("eos", "eot", "eom") if (token_id := self.special_id(stem)) is not None}
        turns = {token_id for token_id in self.ids_of(CONTROL) if self.tokens[token_id] in _TURN_ENDS}
        return frozenset(named | turns)

    def ids_of(self, kind: int) -> list[int]:
        return [token_id for token_id, its_kind in enumerate(self.kinds) if its_kind == kind]


def read_vocabulary(file: GgufFile) -> GgufVocabulary:
    """Raises CorruptCheckpoint when there is none or its lists differ in length."""
    tokens = file.strings(f"{PREFIX}.tokens")
    kinds = file.numbers(f"{PREFIX}.token_type") if f"{PREFIX}.token_type" in file.metadata else []
    if not tokens:
        raise CorruptCheckpoint(f"{file.path} has an empty vocabulary; convert it again")
    if kinds and len(kinds) != len(tokens):
        raise CorruptCheckpoint(f"{file.path} has {len(tokens)} tokens but {len(kinds)} token types; convert it again")
    return GgufVocabulary(file, tokens, kinds)
