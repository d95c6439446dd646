import time
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tidegate_engine.text.detokenizer import Detokenizer, TokenBytes, decode

WORDS = ["the", "▁the", "▁", "a", "▁日本", "é", "😀", "▁▁", "\n"]


def byte_fallback_backend(*, strips):
    vocab = {"<unk>": 0, "</s>": 1} | {f"<0x{byte:02X}>": 2 + byte for byte in range(256)}
    vocab |= {word: 258 + index for index, word in enumerate(WORDS)}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token="<unk>"))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strips else steps)
    backend.add_special_tokens(["</s>"])
    return backend


def byte_level_backend():
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    spelled = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    words = [spelled.pre_tokenize_str(word.replace("▁", " "))[0][0] for word in WORDS]
    vocab = {token: index for index, token in enumerate(dict.fromkeys([*alphabet, *words]))}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|end|>"])
    backend.add_tokens([AddedToken("<think>", special=False), AddedToken("日 本", special=False)])
    return backend


FALLBACK, STRIPPING, BYTE_LEVEL = (
    byte_fallback_backend(strips=False),
    byte_fallback_backend(strips=True),
    byte_level_backend(),
)
BACKENDS = pytest.mark.parametrize(
    "backend", [FALLBACK, STRIPPING, BYTE_LEVEL], ids=["byte-fallback", "byte-fallback-strip", "byte-level"]
)


def ids(backend):
    return st.lists(st.integers(0, backend.get_vocab_size() + 3), max_size=60)  # some ids beyond the vocabulary


def byte_ids(text):
    """One byte-fallback token a byte."""
    return [FALLBACK.token_to_id(f"<0x{byte:02X}>") for byte in text.encode()]


@BACKENDS
@settings(deadline=None, max_examples=150)
@given(st.data())
def test_increments_joined_are_the_text_decoded_at_once(backend, data):
    token_ids = data.draw(ids(backend))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(token_ids)), max_size=8)))
    token_bytes = TokenBytes(backend)
    detokenizer = Detokenizer(token_bytes)

    pieces = [detokenizer.feed(token_ids[a:b]) for a, b in zip([0, *cuts], [*cuts, len(token_ids)], strict=True)]

    assert "".join(pieces) + detokenizer.flush() == decode(token_bytes, token_ids)


@settings(deadline=None, max_examples=300)
@given(ids(BYTE_LEVEL))
def test_byte_level_text_equals_the_librarys_for_any_ids(token_ids):
    known = [token_id for token_id in token_ids if BYTE_LEVEL.id_to_token(token_id) is not None]

    assert decode(TokenBytes(BYTE_LEVEL), token_ids) == BYTE_LEVEL.decode(known, skip_special_tokens=True)


@pytest.mark.parametrize("backend", [FALLBACK, STRIPPING])
@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_byte_fallback_text_equals_the_librarys_where_the_bytes_are_characters(backend, data):
    words = st.sampled_from(WORDS).map(lambda word: [backend.token_to_id(word)])
    characters = st.characters(exclude_categories=["Cs"]).map(byte_ids)
    token_ids = list(chain.from_iterable(data.draw(st.lists(words | characters, max_size=30))))

    assert decode(TokenBytes(backend), token_ids) == backend.decode(token_ids)


def test_a_character_comes_out_once_when_its_last_byte_does():
    detokenizer = Detokenizer(TokenBytes(FALLBACK))

    assert [detokenizer.feed([token_id]) for token_id in byte_ids("日😀")] == ["", "", "日", "", "", "", "😀"]
    assert detokenizer.flush() == ""


def test_half_a_character_at_the_end_is_one_replacement():
    detokenizer = Detokenizer(TokenBytes(FALLBACK))

    assert detokenizer.feed(byte_ids("😀")[:3]) == ""
    assert detokenizer.flush() == "\ufffd"


def test_bytes_that_cannot_become_a_character_are_given_up_at_once():
    detokenizer = Detokenizer(TokenBytes(FALLBACK))
    invalid = FALLBACK.token_to_id("<0xFF>")

    assert [detokenizer.feed([invalid]) for _ in range(3)] == ["\ufffd"] * 3


def test_a_prompt_that_ends_inside_a_character_says_only_that_character_again():
    half, rest = byte_ids("日")[:2], byte_ids("日")[2:]
    prompt = [*byte_ids("the prompt 日"), *half]
    detokenizer = Detokenizer(TokenBytes(FALLBACK), prompt)

    assert detokenizer.feed([*rest, FALLBACK.token_to_id("a")]) == "日a"


@settings(deadline=None, max_examples=150)
@given(ids(FALLBACK), st.integers(0, 60))
def test_prompt_and_continuation_are_the_whole_text(token_ids, cut):
    token_bytes = TokenBytes(FALLBACK)
    prompt, continuation = token_ids[:cut], token_ids[cut:]
    begun = Detokenizer(token_bytes)
    said = begun.feed(prompt)  # whole characters of the prompt; the rest belongs to the continuation

    continued = Detokenizer(token_bytes, prompt)

    assert said + continued.feed(continuation) + continued.flush() == decode(token_bytes, token_ids)


def test_a_continuation_keeps_its_leading_space_and_a_text_does_not():
    the = STRIPPING.token_to_id("▁the")

    assert Detokenizer(TokenBytes(STRIPPING), []).feed([the]) == " the"
    assert Detokenizer(TokenBytes(STRIPPING)).feed([the]) == "the"


def test_special_tokens_and_unknown_ids_say_nothing_even_inside_a_character():
    first, *rest = byte_ids("日")
    end = FALLBACK.token_to_id("</s>")

    assert decode(TokenBytes(FALLBACK), [first, end, 10_000, *rest]) == "日"


@pytest.mark.parametrize("token", ["<0xFF>", "<0xE6>", "▁the"])
def test_work_grows_with_the_tokens_and_not_with_their_square(token):
    """A storm of U+FFFD, of half characters, of words: 200,000 tokens one by one, with a generous deadline."""
    detokenizer = Detokenizer(TokenBytes(FALLBACK))
    token_id = FALLBACK.token_to_id(token)
    start = time.process_time()

    length = sum(len(detokenizer.feed([token_id])) for _ in range(200_000)) + len(detokenizer.flush())

    assert length >= 200_000
    assert time.process_time() - start < 5


@pytest.mark.parametrize(("backend", "token"), [(FALLBACK, "</s>"), (BYTE_LEVEL, "<|end|>")], ids=["fallback", "level"])
def test_special_tokens_are_text_only_where_they_are_shown(backend, token):
    token_bytes = TokenBytes(backend)
    token_ids = [backend.token_to_id(token)]

    assert Detokenizer(token_bytes, []).feed(token_ids) == ""
    assert Detokenizer(token_bytes, [], shown=frozenset({token, "[absent]"})).feed(token_ids) == token
    assert Detokenizer(token_bytes, [], shown=frozenset({"other"})).feed(token_ids) == ""
    assert Detokenizer(token_bytes, [], shown=None).feed(token_ids) == token
