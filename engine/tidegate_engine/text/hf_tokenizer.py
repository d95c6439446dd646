"""A model directory's tokenizer files, read without importing transformers, which alone takes seconds.

tokenizer.json holds the algorithm; the other files say which tokens begin and end a text and how a chat is written.
"""

from pathlib import Path

from tokenizers import Tokenizer, processors

from tidegate_checkpoint.config_json import read_optional_object
from tidegate_checkpoint.end_tokens import end_ids, generation_end_ids
from tidegate_checkpoint.errors import CorruptCheckpoint, MissingCheckpoint
from tidegate_checkpoint.location import CONFIG_FILE
from tidegate_engine.text.tokenizer_parts import TokenizerParts, longest_bytes

TOKENIZER_FILE = "tokenizer.json"
TEMPLATE_FILE = "chat_template.jinja"
_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


def hf_tokenizer_parts(directory: Path) -> TokenizerParts:
    """Raises CheckpointError when tokenizer.json is missing or a file is broken."""
    config = read_optional_object(directory / "tokenizer_config.json")
    backend = _backend(directory / TOKENIZER_FILE)
    special = {name: text for name in _SPECIAL if (text := _token_text(config.get(name))) is not None}
    _set_bos(backend, config.get("add_bos_token"), special.get("bos_token"))
    vocab = backend.get_vocab(with_added_tokens=True)
    return TokenizerParts(
        backend=backend,
        vocab_size=max(vocab.values()) + 1,
        longest_token_bytes=longest_bytes(vocab),
        source=str(directory),
        special_tokens=special,
        eos_token_ids=_eos_ids(directory, backend, special.get("eos_token")),
        chat_template=_chat_template(directory, config.get("chat_template")),
    )


def _backend(file: Path) -> Tokenizer:
    if not file.is_file():
        raise MissingCheckpoint(f"{file} does not exist; copy the model's tokenizer files there")
    try:
        backend = Tokenizer.from_file(str(file))
    except Exception as error:  # the Rust library raises nothing narrower
        raise CorruptCheckpoint(f"{file} is not a tokenizer: {error}; fetch it again") from error
    backend.no_truncation()
    backend.no_padding()
    return backend


def _set_bos(backend: Tokenizer, add_bos: object, bos: str | None) -> None:
    """tokenizer_config.json overrules tokenizer.json where it says anything, as in transformers."""
    if add_bos is None:
        return
    bos_id = backend.token_to_id(bos) if bos else None
    if add_bos and bos is not None and bos_id is not None:
        backend.post_processor = processors.TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, bos_id)])
    else:
        backend.post_processor = processors.TemplateProcessing(single="$A", special_tokens=[])


def _eos_ids(directory: Path, backend: Tokenizer, eos: str | None) -> frozenset[int]:
    """All ids that end an answer: the generation config knows the turn ends, the tokenizer one of them."""
    eos_id = backend.token_to_id(eos) if eos else None
    config = directory / CONFIG_FILE
    configured = generation_end_ids(directory) | end_ids(read_optional_object(config), str(config))
    return configured if eos_id is None else configured | {eos_id}


def _chat_template(directory: Path, inline: object) -> str | None:
    file = directory / TEMPLATE_FILE
    if file.is_file():
        try:
            return file.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise CorruptCheckpoint(f"{file} is not UTF-8 text ({error}); fetch it again") from error
    if isinstance(inline, list):  # several by name; the others are for tools and retrieval
        named = {entry.get("name"): entry.get("template") for entry in inline if isinstance(entry, dict)}
        inline = named.get("default")
    return inline if isinstance(inline, str) else None


def _token_text(value: object) -> str | None:
    """A special token is a text, or an object that describes it."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None
