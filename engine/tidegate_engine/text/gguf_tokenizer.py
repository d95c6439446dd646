"""A GGUF file's vocabulary as a `tokenizers` tokenizer that gives the same ids as the model's own.

Two kinds exist in the architectures served: SentencePiece BPE ("llama"), whose merges follow from the order or scores
of its pieces, and byte-level BPE ("gpt2"), whose merges are listed. Half a million merges are found in about a second.
"""

from collections.abc import Iterator

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from tidegate_checkpoint.errors import CorruptCheckpoint, UnsupportedCheckpoint
from tidegate_checkpoint.gguf import GgufFile
from tidegate_engine.text.gguf_vocabulary import CONTROL, PREFIX, USER_DEFINED, GgufVocabulary, read_vocabulary
from tidegate_engine.text.tokenizer_parts import TokenizerParts, longest_bytes

_METASPACE = "▁"

# How text is cut into words before merging, by the name llama.cpp gives a tokenizer. From the models' tokenizer.json.
_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_SPLIT = _LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")
_LLAMA3_NAMES = ("llama-bpe", "llama3", "llama-v3")
_QWEN2_NAMES = ("qwen2", "deepseek-r1-qwen")
_GPT2_NAMES = ("gpt-2", "default")


def gguf_tokenizer_parts(file: GgufFile) -> TokenizerParts:
    """Raises CheckpointError when the file has no vocabulary or one of a kind that is not served."""
    vocabulary = read_vocabulary(file)
    has_template = "tokenizer.chat_template" in file.metadata
    return TokenizerParts(
        backend=_tokenizer(vocabulary),
        vocab_size=len(vocabulary.tokens),
        longest_token_bytes=longest_bytes(vocabulary.tokens),
        source=str(file.path),
        special_tokens=vocabulary.special_tokens(),
        eos_token_ids=vocabulary.eos_ids(),
        chat_template=file.text("tokenizer.chat_template") if has_template else None,
    )


def _tokenizer(vocabulary: GgufVocabulary) -> Tokenizer:
    file = vocabulary.file
    kind = file.text(f"{PREFIX}.model", "none")
    if kind not in ("llama", "gpt2"):
        raise UnsupportedCheckpoint(f"{file.path}: tokenizer '{kind}' is not supported; supported are llama and gpt2")
    tokenizer = _sentencepiece(vocabulary) if kind == "llama" else _byte_level(vocabulary)
    _add_tokens(tokenizer, vocabulary)
    # a SentencePiece vocabulary that says nothing means yes, as in llama.cpp
    is_bos_added = file.integer(f"{PREFIX}.add_bos_token", int(kind == "llama"))
    bos_id = vocabulary.special_id("bos")
    if is_bos_added and bos_id is not None:
        bos = vocabulary.tokens[bos_id]
        tokenizer.post_processor = processors.TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, bos_id)])
    return tokenizer


def _sentencepiece(vocabulary: GgufVocabulary) -> Tokenizer:
    file, pieces = vocabulary.file, vocabulary.tokens
    is_gemma = file.architecture.startswith("gemma")
    if is_gemma:  # runs of spaces are stored as they are, all other pieces spell a space as ▁
        pieces = [_METASPACE * len(piece) if piece.isspace() and " " in piece else piece for piece in pieces]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    merges = _merges_by_position(pieces, vocab) if is_gemma else _merges_by_score(vocabulary, vocab)
    unknown = pieces[vocabulary.special_id("unknown") or 0]
    tokenizer = _bpe(file, vocab, merges, fuse_unk=True, byte_fallback=True, unk_token=unknown)
    steps = [decoders.Replace(_METASPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if is_gemma:
        tokenizer.normalizer = normalizers.Replace(" ", _METASPACE)
    elif file.integer(f"{PREFIX}.add_space_prefix", default=True):
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(_METASPACE, prepend_scheme="first", split=False)
        steps.append(decoders.Strip(" ", left=1, right=0))
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(_METASPACE, prepend_scheme="never", split=False)
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def _merges_by_position(pieces: list[str], vocab: dict[str, int]) -> list[tuple[str, str]]:
    """Every way to make a piece of two; earlier pieces first, then longer left halves. Gemma's scores do not rank."""
    return [
        (left, right)
        for piece in pieces
        for cut in range(len(piece) - 1, 0, -1)
        if (right := piece[cut:]) in vocab and (left := piece[:cut]) in vocab
    ]


def _merges_by_score(vocabulary: GgufVocabulary, vocab: dict[str, int]) -> list[tuple[str, str]]:
    """The same, better scores first; equal ones by the lengths of the halves."""
    scores = dict(zip(vocabulary.tokens, vocabulary.file.numbers(f"{PREFIX}.scores"), strict=False))
    merges = _merges_by_position(list(vocab), vocab)
    return sorted(merges, key=lambda pair: (scores["".join(pair)], len(pair[0]), len(pair[1])), reverse=True)


def _byte_level(vocabulary: GgufVocabulary) -> Tokenizer:
    file = vocabulary.file
    pre = file.text(f"{PREFIX}.pre", "default")
    vocab = {token: index for index, token in enumerate(vocabulary.tokens)}
    merges = list(_listed_merges(file))
    # Llama 3's own tokenizer takes a word that is in the vocabulary as it is, whatever the merges
    tokenizer = _bpe(file, vocab, merges, ignore_merges=pre in _LLAMA3_NAMES)
    tokenizer.pre_tokenizer = _splitter(pre, file)
    tokenizer.decoder = decoders.ByteLevel()
    if pre in _QWEN2_NAMES:
        tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def _bpe(file: GgufFile, vocab: dict[str, int], merges: list[tuple[str, str]], **options: bool | str) -> Tokenizer:
    try:
        return Tokenizer(BPE(vocab=vocab, merges=merges, **options))
    except Exception as error:  # the Rust library raises nothing narrower
        raise CorruptCheckpoint(f"{file.path}: its vocabulary makes no tokenizer: {error}; convert it again") from error


def _listed_merges(file: GgufFile) -> Iterator[tuple[str, str]]:
    for merge in file.strings(f"{PREFIX}.merges"):
        left, _, right = merge.partition(" ")
        yield left, right


def _splitter(pre: str, file: GgufFile) -> pre_tokenizers.PreTokenizer:
    if pre in _GPT2_NAMES:
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    if pre not in _LLAMA3_NAMES + _QWEN2_NAMES:
        known = ", ".join(_LLAMA3_NAMES + _QWEN2_NAMES + _GPT2_NAMES)
        raise UnsupportedCheckpoint(f"{file.path}: pre-tokenizer '{pre}' is not supported; supported are {known}")
    pattern = _LLAMA3_SPLIT if pre in _LLAMA3_NAMES else _QWEN2_SPLIT
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _add_tokens(tokenizer: Tokenizer, vocabulary: GgufVocabulary) -> None:
    """Control and user-defined tokens are found whole in a text; only the former are special."""
    for kind, add in ((CONTROL, tokenizer.add_special_tokens), (USER_DEFINED, tokenizer.add_tokens)):
        texts = [vocabulary.tokens[token_id] for token_id in vocabulary.ids_of(kind)]
        # a token the vocabulary spells differently (Gemma's runs of spaces) would become a new id
        known = [text for text in texts if tokenizer.token_to_id(text) is not None]
        add([AddedToken(text, normalized=False, special=kind == CONTROL) for text in known])
