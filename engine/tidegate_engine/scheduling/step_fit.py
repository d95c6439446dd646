"""How long a step takes: base + per_token * tokens + per_context_token * context, learned while serving.

The engine feeds every step it ran; the token budget and the forecast of waits read the result. Least squares over three
numbers with exponential forgetting, so that it follows a machine whose neighbours come and go. No coefficient may be
negative (more work never takes less time), and what recent steps say nothing about stays as it was learned last.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tidegate_core.telemetry import StepFit

FORGETTING = 0.995  # a step's weight halves after about 140 later ones
MIN_SAMPLES = 8  # steps measured before the fit is believed
MAX_SURPRISE = 3.0  # a step this many times longer than predicted teaches no more than that
SHORTEST_SECONDS = 1e-4  # below this the clock and the machine's noise are measured
EXCESS_RATE = 0.005  # how fast the excess follows: it settles within a hundred steps, and halves within a thousand
MOST_EXCESS = 0.5  # beyond this it is no noise, and shorter steps would not help
CONTEXT_UNIT = 1000.0  # context is measured in thousands of tokens: the three features are then of similar size
INERTIA = (
    1e-2,
    1.0,
    1e-2,
)  # pull of base, tokens and context towards what they were, against one step's squared features
# Subsets of coefficients that may be above zero, largest first: the best fit without negative ones is among them.
SUPPORTS = ((0, 1, 2), (0, 1), (0, 2), (1, 2), (0,), (1,), (2,))


@dataclass(frozen=True)
class StepTime:
    """Coefficients in seconds, none negative. Immutable, so any thread may hold one."""

    base_seconds: float
    seconds_per_token: float = 0.0
    seconds_per_context_token: float = 0.0
    num_samples: int = 0
    excess: float = 0.0  # one step in twenty takes longer than predicted by more than this part

    def predict(self, num_tokens: float, num_context_tokens: float) -> float:
        return (
            self.base_seconds
            + self.seconds_per_token * num_tokens
            + self.seconds_per_context_token * num_context_tokens
        )


class StepTimeModel:
    """Starts from a guess that the first few steps override."""

    def __init__(self, guess_seconds: float) -> None:
        self.step_time = StepTime(guess_seconds)
        self._weights = [guess_seconds, 0.0, 0.0]
        self._products = [[0.0] * 3 for _ in range(3)]  # sum of features times features, forgetting
        self._targets = [0.0] * 3  # sum of features times seconds, forgetting

    def observe(self, num_tokens: int, num_context_tokens: int, seconds: float) -> None:
        num_samples = self.step_time.num_samples
        excess = self.step_time.excess
        if num_samples >= MIN_SAMPLES:
            expected = max(self.step_time.predict(num_tokens, num_context_tokens), SHORTEST_SECONDS)
            excess = _towards_p95(excess, seconds / expected - 1.0)
            seconds = min(seconds, MAX_SURPRISE * expected)
        features = (1.0, float(num_tokens), num_context_tokens / CONTEXT_UNIT)
        for i in range(3):
            self._targets[i] = FORGETTING * self._targets[i] + features[i] * seconds
            for j in range(3):
                self._products[i][j] = FORGETTING * self._products[i][j] + features[i] * features[j]
        self._weights = self._fit()
        base, per_token, per_unit = self._weights
        self.step_time = StepTime(base, per_token, per_unit / CONTEXT_UNIT, num_samples + 1, excess)

    def report(self) -> StepFit:
        fit = self.step_time
        return StepFit(
            base_seconds=fit.base_seconds,
            seconds_per_token=fit.seconds_per_token,
            seconds_per_context_token=fit.seconds_per_context_token,
            num_samples=fit.num_samples,
        )

    def _fit(self) -> list[float]:
        """The non-negative least-squares solution, by trying the few sets of coefficients that may be above zero."""
        matrix = [
            [value + INERTIA[i] * (i == j) for j, value in enumerate(row)] for i, row in enumerate(self._products)
        ]
        targets = [self._targets[i] + INERTIA[i] * self._weights[i] for i in range(3)]
        best, best_loss = [0.0] * 3, 0.0
        for support in SUPPORTS:
            weights = _solve(matrix, targets, support)
            if min(weights) >= 0.0:
                # At a stationary point w'Mw = w't, so the loss w'Mw - 2w't is -w't.
                loss = -sum(w * t for w, t in zip(weights, targets, strict=True))
                if len(support) == 3:
                    return weights
                if loss < best_loss:
                    best, best_loss = weights, loss
        return best


def _towards_p95(excess: float, surprise: float) -> float:
    """At the 95th percentile 19 small steps down undo one up. Unlike a variance it asks how often, not by how much."""
    moved = excess + 0.95 * EXCESS_RATE if surprise > excess else excess - 0.05 * EXCESS_RATE
    return min(max(moved, 0.0), MOST_EXCESS)


def _solve(matrix: Sequence[Sequence[float]], targets: Sequence[float], support: Sequence[int]) -> list[float]:
    """Solves matrix * weights = targets over the coefficients of `support`, the others zero.

    The matrix is positive definite, so no pivoting is needed.
    """
    rows = [[matrix[i][j] for j in support] + [targets[i]] for i in support]
    for k, pivot in enumerate(rows):
        for row in rows[k + 1 :]:
            factor = row[k] / pivot[k]
            row[k:] = [value - factor * above for value, above in zip(row[k:], pivot[k:], strict=True)]
    weights = [0.0] * len(matrix)
    for k in reversed(range(len(rows))):
        known = sum(rows[k][m] * weights[support[m]] for m in range(k + 1, len(rows)))
        weights[support[k]] = (rows[k][-1] - known) / rows[k][k]
    return weights
