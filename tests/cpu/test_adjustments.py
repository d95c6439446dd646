"""Penalties, biases, bans, masks and min-p against numbers worked out by hand, as OpenAI and vLLM define them."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate_engine.compute.adjustments import Adjustments, Penalties, adjust
from tidegate_engine.compute.sampler import NO_TOKEN, Draw, sample
from tidegate_engine.history import TokenHistory

INF = float("inf")


def penalties(prompt, output, *, presence=0.0, frequency=0.0, repetition=1.0) -> Adjustments:
    history = TokenHistory([*prompt, *output], len(prompt))
    return Adjustments(penalties=Penalties(history, presence, frequency, repetition))


def adjusted(logits: list[float], adjustments: Adjustments | None) -> list[float]:
    rows = torch.tensor([logits, logits])
    adjust(rows, [adjustments, None])
    assert rows[1].tolist() == pytest.approx(logits), "a row without adjustments is as it was"
    return rows[0].tolist()


def greedy(adjustments: Adjustments | None = None) -> Draw:
    return Draw(0.0, 0, 1.0, 0, 0, adjustments=adjustments)


def mask_of(*token_ids: int, num_bytes: int = 1) -> bytes:
    return sum(1 << token_id for token_id in token_ids).to_bytes(num_bytes, "little")


def test_presence_is_taken_off_once_and_frequency_for_each_time_and_the_prompt_does_not_count():
    answer = penalties([0, 0, 3], [1, 2, 2], presence=0.5, frequency=0.25)
    assert adjusted([1.0, 1.0, 1.0, 1.0], answer) == pytest.approx([1.0, 0.25, 0.0, 1.0])


def test_the_repetition_penalty_divides_positive_logits_and_multiplies_negative_ones_of_prompt_and_answer():
    answer = penalties([0, 1], [2, 3, 3], repetition=2.0)
    assert adjusted([4.0, -4.0, 3.0, -3.0, 5.0], answer) == pytest.approx([2.0, -8.0, 1.5, -6.0, 5.0])


def test_repetition_comes_before_frequency_and_presence_and_bias_before_both():
    history = TokenHistory([0, 0], 1)
    both = Adjustments(bias=((0, 2.0),), penalties=Penalties(history, 0.5, 0.25, 2.0))
    assert adjusted([4.0, 1.0], both) == pytest.approx([(4 + 2) / 2 - 0.25 - 0.5, 1.0])


def test_a_history_counts_only_what_came_since_it_was_asked_last():
    tokens = [7, 7]
    history = TokenHistory(tokens, 1)
    assert dict(history.output_counts()) == {7: 1}
    tokens += [8, 7]
    assert dict(history.output_counts()) == {7: 2, 8: 1}
    assert dict(history.output_counts()) == {7: 2, 8: 1}
    assert history.prompt_tokens() == {7}


def test_a_bias_moves_a_logit_and_a_ban_takes_it_out():
    assert adjusted([1.0, 2.0, 3.0], Adjustments(bias=((0, 100.0), (1, -1.5)), banned=(2,))) == [101.0, 0.5, -INF]


def test_a_mask_leaves_what_its_bits_allow_and_nothing_beyond_its_end():
    assert adjusted([1.0] * 20, Adjustments(mask=mask_of(0, 7, 9, num_bytes=2))) == [
        1.0 if token_id in {0, 7, 9} else -INF for token_id in range(20)
    ]


@settings(max_examples=30, deadline=None)
@given(st.sets(st.integers(0, 99), min_size=1), st.integers(1, 120))
def test_a_mask_allows_exactly_its_bits_whatever_the_size_of_the_vocabulary(allowed, vocab_size):
    kept = adjusted([0.5] * vocab_size, Adjustments(mask=mask_of(*allowed, num_bytes=13)))
    assert {token_id for token_id, logit in enumerate(kept) if logit == 0.5} == {i for i in allowed if i < vocab_size}


def test_greedy_rows_take_the_largest_of_what_is_adjusted():
    logits = torch.tensor([[1.0, 5.0, 3.0]] * 3)
    draws = [greedy(), greedy(Adjustments(banned=(1,))), greedy(Adjustments(mask=mask_of(0)))]
    assert sample(logits, draws) == [1, 2, 0]


def test_draws_under_penalties_follow_the_exact_distribution():
    logits = torch.linspace(-1, 1, 6)
    answer = penalties([0], [5, 5, 4], presence=0.3, frequency=0.4, repetition=1.3)
    draws = [Draw(0.8, 0, 1.0, 3, index, adjustments=answer) for index in range(6000)]
    tokens = sample(logits.repeat(len(draws), 1), draws)
    expected = (torch.tensor(adjusted(logits.tolist(), answer)) / 0.8).softmax(-1)
    observed = torch.bincount(torch.tensor(tokens), minlength=6) / len(draws)
    assert (observed - expected).abs().max() < 5 * math.sqrt(0.25 / len(draws))


def test_min_p_keeps_what_reaches_its_share_of_the_most_probable():
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    draws = [Draw(1.0, 0, 1.0, 1, index, min_p=0.29) for index in range(400)]
    assert set(sample(logits.repeat(400, 1), draws)) == {0, 1, 2}


def test_min_p_is_taken_of_the_scaled_logits_and_top_p_of_what_it_leaves():
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    hot = [Draw(100.0, 0, 1.0, 1, index, min_p=0.29) for index in range(400)]
    assert set(sample(logits.repeat(400, 1), hot)) == {0, 1, 2, 3}, "a high temperature flattens them first"
    both = [Draw(1.0, 0, 0.6, 1, index, min_p=0.5) for index in range(400)]
    assert set(sample(logits.repeat(400, 1), both)) == {0}, "0.5 of 0.8 is more than 0.6"
    alone = [Draw(1.0, 0, 0.6, 1, index) for index in range(400)]
    assert set(sample(logits.repeat(400, 1), alone)) == {0, 1}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [math.nan, INF, -INF])
def test_a_row_without_numbers_gives_no_token_and_its_neighbours_theirs(temperature, bad):
    logits = torch.tensor([[0.0, 30.0, 0.0], [bad, bad, bad], [30.0, 0.0, 0.0]])
    assert sample(logits, [Draw(temperature, 2, 0.9, 0, 0)] * 3) == [1, NO_TOKEN, 0]


def test_one_nan_among_numbers_is_noticed_too():
    assert sample(torch.tensor([[0.0, math.nan, 9.0]]), [greedy()]) == [NO_TOKEN]


@settings(max_examples=25, deadline=None)
@given(place=st.integers(0, 9), seed=st.integers(0, 2**63), data=st.data())
def test_an_adjusted_row_is_drawn_alike_alone_and_in_any_batch(place, seed, data):
    generator = torch.Generator().manual_seed(2)
    batch = torch.randn(10, 90, generator=generator) * 2
    tokens = st.lists(st.integers(0, 89), max_size=20)
    adjustments = Adjustments(
        mask=data.draw(st.none() | st.just(b"\xff" * 9)),
        banned=tuple(data.draw(tokens)[:5]),
        bias=((3, data.draw(st.floats(-100, 100))),),
        penalties=penalties(data.draw(tokens), data.draw(tokens), presence=0.5, repetition=1.2).penalties,
    )
    own = Draw(0.9, 20, 0.95, seed, 4, 0.05, adjustments)
    draws = [
        Draw(0.1 * row, row, 1.0, row, row, 0.01 * row, Adjustments(banned=(row,)) if row % 2 else None)
        for row in range(10)
    ]
    draws[place] = own
    alone = sample(batch[place : place + 1].clone(), [own])
    assert sample(batch.clone(), draws)[place] == alone[0]
