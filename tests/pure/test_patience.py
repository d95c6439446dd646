"""How long a step may take: a frozen one is noticed in seconds, a long one on a slow machine is not called frozen."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate_engine.patience import FEWEST_SECONDS, MOST_UNKNOWN_SECONDS, Patience, patience_seconds

NOTICED_WITHIN_SECONDS = 15  # of which the process's own watch takes one
seconds = st.floats(0, 0.5)
tokens = st.integers(1, 4096)


@given(seconds, tokens)
def test_a_step_of_a_size_that_was_measured_is_given_up_in_time(predicted_seconds, num_tokens):
    assert patience_seconds(predicted_seconds, num_tokens, num_tokens) < NOTICED_WITHIN_SECONDS


@given(st.floats(0, 1e4), tokens, tokens)
def test_no_step_is_given_up_before_many_times_its_prediction(predicted_seconds, num_tokens, most_measured):
    patience = patience_seconds(predicted_seconds, num_tokens, most_measured)
    assert patience >= max(FEWEST_SECONDS, 10 * predicted_seconds)


@pytest.mark.parametrize(
    ("num_tokens", "expected_seconds"), [(1, FEWEST_SECONDS), (128, 64), (2048, MOST_UNKNOWN_SECONDS)]
)
def test_the_first_step_of_its_size_is_given_time_for_a_slow_machine(num_tokens, expected_seconds):
    assert patience_seconds(0.1, num_tokens, most_measured_tokens=0) == expected_seconds


def test_a_size_counts_as_known_only_when_such_a_step_has_ended():
    patience = Patience()
    patience.begin(128, 0.1)
    assert patience.seconds == 64
    patience.end(128)
    patience.begin(128, 0.1)
    assert patience.seconds == FEWEST_SECONDS
