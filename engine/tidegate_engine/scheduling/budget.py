"""How many tokens the next step may compute: all prompt tokens that the latency objective leaves room for.

Called by the engine before every step, and by the forecast of waits for every step it imagines.
"""

from dataclasses import dataclass

from tidegate_core.memory import STEP_TOKENS
from tidegate_engine.scheduling.step_fit import MIN_SAMPLES, StepTime

MIN_CHUNK_TOKENS = 32  # prompts advance by this much even where the objective is missed already, so that none starves
FIRST_CHUNK_TOKENS = 128  # until enough steps are measured
PREFILL_STEP_SECONDS = 0.5  # nobody waits for a token: steps may be longer, but cancels and arrivals wait for their end


@dataclass(frozen=True)
class BudgetLimits:
    """`itl_seconds` is what the 95th percentile of the time between tokens is to be.

    `max_step_tokens` is what the runner's activations were sized for.
    """

    itl_seconds: float
    max_step_tokens: int = STEP_TOKENS


def token_budget(limits: BudgetLimits, step_time: StepTime, num_decoding: int, num_context_tokens: int) -> int:
    """Tokens of the next step; never less than one per decoding request plus the smallest chunk."""
    fewest = num_decoding + MIN_CHUNK_TOKENS
    if step_time.num_samples < MIN_SAMPLES:
        wanted = num_decoding + FIRST_CHUNK_TOKENS
    elif step_time.seconds_per_token <= 0.0:
        wanted = limits.max_step_tokens
    else:
        goal = limits.itl_seconds / (1.0 + step_time.excess)  # so that the objective holds for 19 steps in 20
        if not num_decoding:
            goal = max(goal, PREFILL_STEP_SECONDS)
        spare = goal - step_time.predict(0, num_context_tokens)
        wanted = int(spare / step_time.seconds_per_token)
    return max(fewest, min(wanted, limits.max_step_tokens))
