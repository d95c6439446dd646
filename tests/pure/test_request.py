"""What a request asks for when it does not say how long its answer may be."""

import pytest

from tidegate_engine.request import default_max_tokens


@pytest.mark.parametrize(
    ("context", "num_prompt", "usual", "expected"),
    [
        (8192, 900, 300, 1200),  # four usual answers
        (8192, 900, 100, 1024),  # but room for a long one
        (8192, 7900, 300, 292),  # and never past the context
        (8192, 8192, 300, 1),  # the prompt that leaves no room is refused by its numbers, not by a zero
    ],
)
def test_a_missing_max_tokens_becomes_finite(context, num_prompt, usual, expected):
    assert default_max_tokens(context, num_prompt, usual) == expected
