"""What a request means to a forecast: outlooks make them of live requests, doors of those that ask."""

from typing import NamedTuple


class Demand(NamedTuple):
    """What a request asks for, how far it is, and how many tokens it is expected to sample still.

    `num_missing_tokens` are those to compute before its next token. Admission of guaranteed requests counts with
    `most_left`, that of spot requests with `likely_left` for everybody.
    """

    num_missing_tokens: int
    num_tokens: int
    num_outputs: int
    expected_left: int
    likely_left: int
    most_left: int
    is_spot: bool = False
