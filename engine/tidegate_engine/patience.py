"""How long a step may take before the engine counts as stuck. /livez and the process's own watch ask.

A frozen device must be noticed within seconds, and a long step on a slow machine must not be taken for one. So the
bound follows what steps were measured to take; only the part of a step larger than any measured before is given time
for the slowest machine there is. Warm-up and compilation come before the engine serves, and are not watched.
"""

FEWEST_SECONDS = 10.0
PREDICTIONS = 20  # a neighbour that takes the cores makes a step a few times longer, not so many times
UNKNOWN_TOKEN_SECONDS = 0.5
MOST_UNKNOWN_SECONDS = 120.0


def patience_seconds(predicted_seconds: float, num_tokens: int, most_measured_tokens: int) -> float:
    """For a step of `num_tokens`, when steps of up to `most_measured_tokens` have ended."""
    num_unknown = max(0, num_tokens - most_measured_tokens)
    unknown_seconds = min(MOST_UNKNOWN_SECONDS, UNKNOWN_TOKEN_SECONDS * num_unknown)
    return max(FEWEST_SECONDS, PREDICTIONS * predicted_seconds, unknown_seconds)


class Patience:
    """Written by the engine thread around each step; `seconds` may be read by any."""

    def __init__(self) -> None:
        self.seconds = FEWEST_SECONDS
        self._most_tokens = 0

    def begin(self, num_tokens: int, predicted_seconds: float) -> None:
        self.seconds = patience_seconds(predicted_seconds, num_tokens, self._most_tokens)

    def end(self, num_tokens: int) -> None:
        self._most_tokens = max(self._most_tokens, num_tokens)
