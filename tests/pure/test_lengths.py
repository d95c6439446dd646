"""Lengths of answers, learned from those that ended."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate_engine.scheduling.lengths import OutputLengths, Progress

NO_LIMIT = 100_000


def learned(lengths: list[int], *, max_tokens: int = NO_LIMIT, num_prompt_tokens: int = 500) -> OutputLengths:
    known = OutputLengths(usual_tokens=300)
    for length in lengths:
        known.observe(num_prompt_tokens, min(length, max_tokens), is_cut_off=length > max_tokens)
    return known


def exponential(mean: float, num: int = 3000) -> list[int]:
    rng = random.Random(7)
    return [1 + int(rng.expovariate(1 / mean)) for _ in range(num)]


def test_before_any_answer_ended_the_usual_length_is_expected():
    curve = OutputLengths(usual_tokens=300).curve(500)
    assert [curve.quantile(share, 0, NO_LIMIT) for share in (0.1, 0.5)] == pytest.approx([300, 300], rel=0.12)
    assert curve.quantile(0.5, 0, max_tokens=100) == 100
    assert 305 < curve.quantile(0.5, 305, NO_LIMIT) < 450, "one that is longer than usual goes on for a while"


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.99])
def test_quantiles_are_those_of_the_answers_that_ended(share):
    lengths = exponential(200)
    truth = sorted(lengths[-500:])[int(500 * share)]
    assert learned(lengths).curve(500).quantile(share, 0, NO_LIMIT) == pytest.approx(truth, rel=0.25, abs=5)


def test_a_request_under_way_is_compared_with_those_that_got_as_far():
    curve = learned([100] * 300 + [1000] * 300).curve(500)
    assert curve.quantile(0.25, 0, NO_LIMIT) == pytest.approx(100, rel=0.15)
    assert curve.quantile(0.25, 150, NO_LIMIT) == pytest.approx(1000, rel=0.15)


def test_answers_cut_off_by_max_tokens_do_not_make_the_others_look_short():
    curve = learned(exponential(400), max_tokens=300).curve(500)
    half_life = curve.quantile(0.5, 0, NO_LIMIT)
    assert half_life == pytest.approx(277, rel=0.15)


def test_prompts_of_another_length_have_answers_of_another_length():
    known = OutputLengths(usual_tokens=300)
    for _ in range(300):
        known.observe(3000, 60, is_cut_off=False)
        known.observe(900, 390, is_cut_off=False)
    assert known.curve(3000).quantile(0.5, 0, NO_LIMIT) == pytest.approx(60, rel=0.15)
    assert known.curve(900).quantile(0.5, 0, NO_LIMIT) == pytest.approx(390, rel=0.15)
    assert 50 < known.curve(100).quantile(0.5, 0, NO_LIMIT) < 420, "an unseen kind leans on all of them"


def test_old_answers_are_forgotten():
    curve = learned([900] * 2000 + [50] * 2000).curve(500)
    assert curve.quantile(0.9, 0, NO_LIMIT) == pytest.approx(50, rel=0.15)


def test_a_curve_once_taken_does_not_change():
    known = learned([100] * 50)
    curve = known.curve(500)
    before = curve.quantile(0.5, 0, NO_LIMIT)
    for _ in range(500):
        known.observe(500, 900, is_cut_off=False)
    assert curve.quantile(0.5, 0, NO_LIMIT) == before
    assert known.curve(500).quantile(0.5, 0, NO_LIMIT) > before


def test_answers_under_way_do_not_make_the_others_look_short():
    known = learned([50] * 10)
    running = [Progress(500, 300)] * 30
    alone = known.curve(500).quantile(0.5, 0, NO_LIMIT)
    assert known.and_running(running).curve(500).quantile(0.5, 0, NO_LIMIT) > 290
    assert known.curve(500).quantile(0.5, 0, NO_LIMIT) == alone < 60, "and are not counted for good"


def test_a_request_that_sampled_nothing_teaches_nothing():
    known = OutputLengths(usual_tokens=300)
    before = known.curve(500)
    known.observe(500, 0, is_cut_off=True)
    assert known.curve(500) is before


@given(
    lengths=st.lists(st.integers(1, 3_000_000), max_size=30),
    share=st.floats(0, 1),
    num_outputs=st.integers(0, 3_000_000),
    max_left=st.integers(1, 3_000_000),
)
def test_a_length_is_always_longer_than_what_is_there_and_within_max_tokens(lengths, share, num_outputs, max_left):
    curve = learned(lengths).curve(500)
    length = curve.quantile(share, num_outputs, num_outputs + max_left)
    assert num_outputs < length <= num_outputs + max_left
    assert curve.quantile(min(1.0, share + 0.1), num_outputs, num_outputs + max_left) >= length
