"""Text of a stream: whatever the chunking, deltas add up to the text before the first stop string."""

import codecs
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate_engine.request import FinishReason, TokenChunk
from tidegate_engine.server.answers import Usage
from tidegate_engine.server.choices import Piece, WholeChoice
from tidegate_engine.server.completion_rendering import CompletionRenderer
from tidegate_engine.server.parsers.parts import Content
from tidegate_engine.server.rendering import AnswerHead, ChatRenderer
from tidegate_engine.server.schemas.generation import StreamOptions
from tidegate_engine.server.stream import ChoiceText, Delta, Stopping, find_stop, held_length

END = 256  # the token that stops


class ByteDecoder:
    """Tokens are bytes of UTF-8."""

    def __init__(self) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token_ids: Sequence[int]) -> str:
        return self._utf8.decode(bytes(token_ids))

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)


def run(
    text: str, cuts: Sequence[int], stops: tuple[str, ...], reason: FinishReason = FinishReason.LENGTH
) -> list[Delta]:
    """Feeds the text's bytes in pieces that end at `cuts`; as in routes, nothing follows a finished choice."""
    tokens = [*text.encode(), END] if reason is FinishReason.STOP else list(text.encode())
    return feed_all(ChoiceText(ByteDecoder(), Stopping(stops)), tokens, cuts, reason)


def feed_all(choice: ChoiceText, tokens: list[int], cuts: Sequence[int], reason: FinishReason) -> list[Delta]:
    ends = sorted({min(cut, len(tokens)) for cut in cuts} | {len(tokens)})
    deltas, start = [], 0
    for end in ends:
        deltas.append(choice.feed(TokenChunk(tuple(tokens[start:end]), reason if end == len(tokens) else None)))
        start = end
        if choice.finish_reason is not None:
            break
    return deltas


def cut_by_hand(text: str, stops: tuple[str, ...]) -> str:
    """Character by character: where a stop string is complete first, cut the longest that ends there."""
    for end in range(len(text) + 1):
        if complete := [stop for stop in stops if text[:end].endswith(stop)]:
            return text[: end - max(map(len, complete))]
    return text


ALPHABET = st.text(alphabet="ab<é🌊", max_size=24)
STOPS = st.lists(st.text(alphabet="ab<é🌊", min_size=1, max_size=4), max_size=3).map(tuple)


@settings(max_examples=300)
@given(
    ALPHABET,
    st.lists(st.integers(0, 60), max_size=12),
    STOPS,
    st.sampled_from([FinishReason.STOP, FinishReason.LENGTH]),
)
def test_deltas_add_up_to_the_text_before_the_first_stop_string_for_any_chunking(text, cuts, stops, reason):
    deltas = run(text, cuts, stops, reason)
    expected = cut_by_hand(text, stops)
    assert "".join(delta.text for delta in deltas) == expected
    assert [delta.finish_reason for delta in deltas[:-1]] == [None] * (len(deltas) - 1)
    assert deltas[-1].finish_reason is (
        reason if expected == text and not find_stop_in(text, stops) else FinishReason.STOP
    )


def find_stop_in(text: str, stops: tuple[str, ...]) -> bool:
    return any(stop in text for stop in stops)


@given(ALPHABET, st.lists(st.integers(0, 60), max_size=12), STOPS)
def test_tokens_are_counted_up_to_the_one_that_completes_a_stop_string_for_any_chunking(text, cuts, stops):
    num_tokens = []
    for ends in ([], cuts):
        choice = ChoiceText(ByteDecoder(), Stopping(stops))
        feed_all(choice, list(text.encode()), ends, FinishReason.LENGTH)
        num_tokens.append(choice.num_tokens)
    assert num_tokens[0] == num_tokens[1]


@given(ALPHABET, STOPS)
def test_no_more_is_held_back_than_may_become_a_stop_string(text, stops):
    held = held_length(text, stops)
    tails = [
        length
        for length in range(1, len(text) + 1)
        if any(len(s) > length and s.startswith(text[-length:]) for s in stops)
    ]
    assert held == max(tails, default=0)


def test_part_of_a_stop_string_is_held_until_it_is_refuted():
    choice = ChoiceText(ByteDecoder(), Stopping(("<end>",)))
    assert choice.feed(TokenChunk(tuple(b"so<en"), None)) == Delta("so")
    assert choice.feed(TokenChunk(tuple(b"t"), None)) == Delta("<ent")
    assert choice.feed(TokenChunk(tuple(b"<end>ignored"), None)) == Delta("", FinishReason.STOP)


def test_a_held_tail_is_not_lost_when_the_answer_ends():
    choice = ChoiceText(ByteDecoder(), Stopping(("<end>",)))
    assert choice.feed(TokenChunk(tuple(b"a<"), None)) == Delta("a")
    assert choice.feed(TokenChunk((), FinishReason.LENGTH)) == Delta("<", FinishReason.LENGTH)


def test_of_two_stop_strings_the_one_that_is_complete_first_cuts():
    assert find_stop("abcX", ("abcX", "bc")) == (1, 3)
    assert find_stop("abc", ("c", "bc")) == (1, 3)
    assert find_stop("ab", ("c",)) is None


def test_the_token_that_stopped_is_counted_but_not_text():
    choice = ChoiceText(ByteDecoder())
    assert choice.feed(TokenChunk((*b"hi", END), FinishReason.STOP)) == Delta("hi", FinishReason.STOP)
    assert choice.num_tokens == 3


def test_half_a_character_waits_for_its_other_half():
    wave = "🌊".encode()
    choice = ChoiceText(ByteDecoder())
    assert choice.feed(TokenChunk(tuple(wave[:2]), None)) == Delta("")
    assert choice.feed(TokenChunk(tuple(wave[2:]), None)) == Delta("🌊")


HEAD = AnswerHead("chatcmpl-1", 1700000000, "tide")


def spell(token_id: int) -> bytes:
    return bytes([token_id])


def said(text: str, reason: FinishReason | None = None) -> Piece:
    return Piece((Content(text),) if text else (), reason)


def test_a_chat_stream_opens_with_the_role_and_closes_with_the_reason():
    chat = ChatRenderer(HEAD, StreamOptions(), spell)
    shared = b'{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"tide",'
    shared += b'"choices":[{"index":0,'
    assert chat.opening(0) == (
        b"data: " + shared + b'"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}\n\n'
    )
    assert chat.piece(0, said("hi"), None) == (
        b"data: " + shared + b'"delta":{"content":"hi"},"logprobs":null,"finish_reason":null}]}\n\n'
    )
    assert chat.piece(0, said("", FinishReason.LENGTH), None) == (
        b"data: " + shared + b'"delta":{},"logprobs":null,"finish_reason":"length"}]}\n\n'
    )


def test_usage_is_null_in_every_chunk_but_the_last_and_absent_unless_asked_for():
    asked = CompletionRenderer(HEAD, StreamOptions(include_usage=True), spell)
    assert asked.opening(0) is None
    assert b'"usage":null' in asked.piece(0, said("x"), None)
    assert b'"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5,' in asked.usage(
        Usage.of(3, 2)
    )
    assert b'"usage":{"prompt_tokens":3' in asked.piece(0, said("x"), Usage.of(3, 1))
    assert b"usage" not in CompletionRenderer(HEAD, StreamOptions(), spell).piece(0, said("x"), None)


def test_whole_answers_keep_the_order_of_their_choices():
    whole = CompletionRenderer(HEAD, StreamOptions(), spell).whole(
        [WholeChoice((Content("a"),), FinishReason.STOP), WholeChoice((Content("b"),), FinishReason.LENGTH)],
        Usage.of(2, 2),
    )
    assert b'{"index":0,"text":"a","logprobs":null,"finish_reason":"stop"}' in whole
    assert b'{"index":1,"text":"b","logprobs":null,"finish_reason":"length"}' in whole
