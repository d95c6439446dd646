import json
import threading
import time
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast
from transformers.integrations.gguf import convert_gguf_tokenizer

from checkpoint_files import gguf_bytes
from real_model import gemma_gguf
from tidegate_checkpoint.errors import CorruptCheckpoint, MissingCheckpoint, UnsupportedCheckpoint
from tidegate_core.errors import BadLaunch
from tidegate_engine.errors import BadRequest
from tidegate_engine.text.chat_template import NoChatTemplate
from tidegate_engine.text.tokenizer import load_tokenizer

CORPUS = [
    "the quick brown fox jumps over the lazy dog, and the dog does not mind at all",
    "a café in Übersee serves naïve señoritas; 12345 coins, 678 notes",
    "def function(x):\n    return x  # comment\n\n\nprint(function(3))",
    "don't won't it's WE'LL  double  spaces\t tabs",
]
TEXTS = [
    *CORPUS,
    "",
    " leading and trailing ",
    "unseen: 你好 😀 \x00 ﬁ e\u0301",
    "<s>special</s> <|end|>in<|end|>side",
    "  \n\n  ",
    "1234567 the12 x",
]
TEMPLATE = "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}[assistant] "
GEMMA_CASES = json.loads((Path(__file__).parent / "data" / "gemma_token_ids.json").read_text())["cases"]


def byte_level_backend():
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=["<s>", "</s>", "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    return backend


def sentencepiece_vocab():
    """Pieces and scores as SentencePiece BPE has them: specials, bytes, then merged pieces by falling score."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=200, show_progress=False))
    vocab, model = backend.get_vocab(), json.loads(backend.to_str())["model"]
    merged = ["".join(pair) for pair in model["merges"]]
    single = [piece for piece in vocab if piece not in set(merged)]
    specials = ["<unk>", "<s>", "</s>", "<|end|>"]
    pieces = [*specials, *(f"<0x{byte:02X}>" for byte in range(256)), *merged, *single]
    first = len(specials) + 256
    scores = [0.0] * first + [-float(rank) for rank in range(len(pieces) - first)]
    kinds = [2, 3, 3, 4] + [6] * 256 + [1] * (len(pieces) - first)
    return pieces, scores, kinds


@pytest.fixture
def directory(tmp_path):
    """A model directory with a byte-level tokenizer that puts <s> before a text."""
    backend = byte_level_backend()
    bos_id = backend.token_to_id("<s>")
    backend.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", bos_id)])
    backend.save(str(tmp_path / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": False}, "chat_template": TEMPLATE}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "eos_token_id": 1}))
    return tmp_path


def edit(file, **changes):
    content = json.loads(file.read_text()) if file.exists() else {}
    content = {key: value for key, value in {**content, **changes}.items() if value is not None}
    file.write_text(json.dumps(content))


def sentencepiece_metadata(**extra):
    pieces, scores, kinds = sentencepiece_vocab()
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        **extra,
    }


def byte_level_metadata(pre="default"):
    backend = byte_level_backend()
    model = json.loads(backend.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    return {
        "general.architecture": "qwen2",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, 3, 3] + [1] * (len(tokens) - 3),
        "tokenizer.ggml.merges": [" ".join(pair) for pair in model["merges"]],
        "tokenizer.ggml.eos_token_id": 1,
    }


def load_gguf(tmp_path, metadata):
    (tmp_path / "model.gguf").write_bytes(gguf_bytes(metadata))
    return load_tokenizer(tmp_path)


def converted(metadata):
    """transformers' own conversion of the same vocabulary."""
    names = {"model": "tokenizer_type", "pre": "pre_tokenizer_type"}
    fields = {key.removeprefix("tokenizer.ggml."): value for key, value in metadata.items()}
    backend, _ = convert_gguf_tokenizer(
        metadata["general.architecture"], {names.get(key, key): value for key, value in fields.items()}
    )
    return backend


# --- tokenizer.json


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("add_special_tokens", [True, False])
def test_ids_and_text_equal_transformers(directory, text, add_special_tokens):
    reference = PreTrainedTokenizerFast(
        tokenizer_file=str(directory / "tokenizer.json"), bos_token="<s>", eos_token="</s>", add_bos_token=True
    )
    tokenizer = load_tokenizer(directory)

    ids = tokenizer.encode(text, add_special_tokens=add_special_tokens)

    expected = reference.encode(text, add_special_tokens=add_special_tokens)
    assert ids == (expected[1:] if expected[:2] == [0, 0] else expected)
    assert tokenizer.decode(ids) == reference.decode(ids, skip_special_tokens=True)


def test_a_text_that_spells_bos_gets_no_second_one(directory):
    tokenizer = load_tokenizer(directory)

    assert tokenizer.encode("<s>the dog", add_special_tokens=True) == tokenizer.encode(
        "the dog", add_special_tokens=True
    )


def test_a_template_that_writes_bos_gets_no_second_one(directory):
    tokenizer = load_tokenizer(directory)

    ids = tokenizer.encode(
        tokenizer.apply_chat_template([{"role": "user", "content": "the dog"}]), add_special_tokens=False
    )

    assert ids.count(tokenizer.bos_token_id) == 1
    assert tokenizer.decode(ids) == "[user] the dog\n[assistant] "


def test_tokenizer_config_decides_about_bos(directory):
    edit(directory / "tokenizer_config.json", add_bos_token=False)
    assert load_tokenizer(directory).encode("dog", add_special_tokens=True)[0] != 0
    edit(directory / "tokenizer_config.json", add_bos_token=True)
    assert load_tokenizer(directory).encode("dog", add_special_tokens=True)[0] == 0


def test_all_ends_of_an_answer_are_known(directory):
    edit(directory / "generation_config.json", eos_token_id=[1, 2])
    edit(directory / "config.json", eos_token_id=7)

    assert load_tokenizer(directory).eos_token_ids == {1, 2, 7}


def test_the_given_template_goes_before_the_models_own(directory):
    tokenizer = load_tokenizer(directory, "{{ messages[0].content }}!")

    assert tokenizer.apply_chat_template([{"role": "user", "content": "hi"}]) == "hi!"


def test_a_template_file_goes_before_the_one_in_the_config(directory):
    (directory / "chat_template.jinja").write_text("file")

    assert load_tokenizer(directory).apply_chat_template([]) == "file"


def test_of_several_named_templates_the_default_is_taken(directory):
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    edit(directory / "tokenizer_config.json", chat_template=named)

    assert load_tokenizer(directory).apply_chat_template([]) == "plain"


def test_without_a_template_only_chat_is_refused(directory):
    edit(directory / "tokenizer_config.json", chat_template=None)
    tokenizer = load_tokenizer(directory)

    assert tokenizer.encode("the dog", add_special_tokens=False)
    assert not tokenizer.has_chat_template
    with pytest.raises(
        NoChatTemplate, match=r"no chat template.*/v1/completions.*--chat-template FILE.*spec\.model\.chatTemplate"
    ):
        tokenizer.apply_chat_template([{"role": "user", "content": "hi"}])


def test_a_broken_given_template_is_refused_at_load(directory):
    with pytest.raises(BadLaunch, match="not a valid chat template"):
        load_tokenizer(directory, "{% for %}")


def test_half_a_surrogate_pair_is_the_clients_fault(directory):
    with pytest.raises(BadRequest, match="Unicode"):
        load_tokenizer(directory).encode("a\ud83d", add_special_tokens=False)


def test_truncation_that_a_file_asks_for_is_not_applied(directory):
    backend = Tokenizer.from_file(str(directory / "tokenizer.json"))
    backend.enable_truncation(4)
    backend.enable_padding(length=9)
    backend.save(str(directory / "tokenizer.json"))

    assert len(load_tokenizer(directory).encode("the dog " * 20, add_special_tokens=False)) > 9


def test_no_text_is_longer_than_its_tokens_allow(directory):
    tokenizer = load_tokenizer(directory)

    for text in TEXTS:
        num_tokens = len(tokenizer.encode(text, add_special_tokens=False))
        assert len(text.encode()) <= num_tokens * tokenizer.max_token_bytes


def test_composing_normalizers_widen_that_bound(directory):
    before = load_tokenizer(directory).max_token_bytes
    backend = Tokenizer.from_file(str(directory / "tokenizer.json"))
    backend.normalizer = normalizers.NFC()
    backend.save(str(directory / "tokenizer.json"))

    assert load_tokenizer(directory).max_token_bytes == 3 * before


def test_a_template_file_that_is_no_text_is_named(directory):
    (directory / "chat_template.jinja").write_bytes(b"\xff\xfe")

    with pytest.raises(CorruptCheckpoint, match=r"chat_template\.jinja is not UTF-8"):
        load_tokenizer(directory)


def test_a_missing_or_broken_tokenizer_is_named(directory):
    file = directory / "tokenizer.json"
    file.write_text('{"model": ')
    with pytest.raises(CorruptCheckpoint, match=r"tokenizer\.json is not a tokenizer"):
        load_tokenizer(directory)
    file.unlink()
    with pytest.raises(MissingCheckpoint, match=r"tokenizer\.json does not exist"):
        load_tokenizer(directory)


def test_a_decoder_that_cannot_be_streamed_is_refused(directory):
    backend = Tokenizer.from_file(str(directory / "tokenizer.json"))
    backend.decoder = decoders.WordPiece()
    backend.save(str(directory / "tokenizer.json"))

    with pytest.raises(UnsupportedCheckpoint, match="WordPiece"):
        load_tokenizer(directory)


# --- GGUF


@pytest.mark.parametrize("text", TEXTS)
def test_a_sentencepiece_gguf_gives_the_ids_transformers_gives(tmp_path, text):
    metadata = sentencepiece_metadata()
    reference = converted(metadata)
    tokenizer = load_gguf(tmp_path, metadata)

    ids = tokenizer.encode(text, add_special_tokens=False)

    assert ids == reference.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids) == reference.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("pre", ["default", "llama-bpe", "qwen2"])
def test_a_byte_level_gguf_gives_the_ids_transformers_gives(tmp_path, pre):
    metadata = byte_level_metadata(pre)
    reference = converted(metadata)
    tokenizer = load_gguf(tmp_path, metadata)

    for text in (text for text in TEXTS if "e\u0301" not in text):  # it forgets Qwen's normalization
        assert tokenizer.encode(text, add_special_tokens=False) == reference.encode(text, add_special_tokens=False).ids


def test_qwen_text_is_composed_first_as_its_own_tokenizer_does(tmp_path):
    tokenizer = load_gguf(tmp_path, byte_level_metadata("qwen2"))

    assert tokenizer.encode("cafe\u0301", add_special_tokens=False) == tokenizer.encode(
        "café", add_special_tokens=False
    )


def test_bos_follows_the_file_and_the_kind_of_vocabulary(tmp_path):
    first = [
        load_gguf(tmp_path, metadata).encode("dog", add_special_tokens=True)[0]
        for metadata in (
            sentencepiece_metadata(),
            sentencepiece_metadata(**{"tokenizer.ggml.add_bos_token": False}),
            byte_level_metadata() | {"tokenizer.ggml.bos_token_id": 0},
            byte_level_metadata() | {"tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.add_bos_token": True},
        )
    ]

    assert [token_id < 2 for token_id in first] == [True, False, False, True]


def test_the_template_and_special_tokens_of_a_gguf_are_used(tmp_path):
    metadata = sentencepiece_metadata(**{"tokenizer.chat_template": "{{ bos_token }}{{ messages[0].content }}"})

    assert load_gguf(tmp_path, metadata).apply_chat_template([{"role": "user", "content": "dog"}]) == "<s>dog"


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"tokenizer.ggml.model": "bert"}, UnsupportedCheckpoint, "'bert' is not supported"),
        ({"tokenizer.ggml.pre": "mystery"}, UnsupportedCheckpoint, "pre-tokenizer 'mystery'"),
        ({"tokenizer.ggml.merges": ["no such"]}, CorruptCheckpoint, "makes no tokenizer"),
        ({"tokenizer.ggml.tokens": 3}, CorruptCheckpoint, "not a list of strings"),
        ({"tokenizer.ggml.token_type": [1, 1]}, CorruptCheckpoint, "but 2 token types"),
        ({"tokenizer.ggml.eos_token_id": 99_999}, CorruptCheckpoint, r"eos_token_id' is 99999, there are \d+ tokens"),
    ],
)
def test_a_vocabulary_that_is_not_served_says_why(tmp_path, change, error, words):
    with pytest.raises(error, match=words):
        load_gguf(tmp_path, byte_level_metadata() | change)


def test_a_gguf_without_a_vocabulary_says_so(tmp_path):
    with pytest.raises(CorruptCheckpoint, match="no 'tokenizer"):
        load_gguf(tmp_path, {"general.architecture": "llama"})


# --- the real model


@pytest.fixture(scope="module")
def gemma():
    return load_tokenizer(gemma_gguf())


@pytest.mark.parametrize("case", GEMMA_CASES, ids=range(len(GEMMA_CASES)))
def test_the_real_vocabulary_gives_the_ids_transformers_gives(gemma, case):
    expected = case["ids"][1:] if case["text"].startswith("<bos>") else case["ids"]  # ours says BOS once

    ids = gemma.encode(case["text"], add_special_tokens=True)

    assert ids == expected
    if not any(special in case["text"] for special in ("<bos>", "<start", "<unused", "▁")):
        assert gemma.decode(ids) == case["text"]


def test_the_real_model_ends_at_texts_and_turns(gemma):
    assert gemma.eos_token_ids == {1, 106}
    assert (gemma.bos_token_id, gemma.vocab_size) == (2, 262_144)


def test_the_real_vocabulary_loads_in_seconds():
    start = time.process_time()

    load_tokenizer(gemma_gguf())

    assert time.process_time() - start < 6


def test_a_long_prompt_does_not_hold_up_other_threads(gemma):
    text = "The quick brown fox jumps over the lazy dog. " * 20_000
    worker = threading.Thread(target=gemma.encode, args=(text,), kwargs={"add_special_tokens": True})
    num_turns = 0

    worker.start()
    while worker.is_alive():
        worker.join(timeout=0.001)
        num_turns += 1

    assert num_turns > 20
