"""The online fit of step times, and the token budget that is read from it."""

import random
from dataclasses import replace

import pytest

from tidegate_engine.scheduling.budget import FIRST_CHUNK_TOKENS, MIN_CHUNK_TOKENS, BudgetLimits, token_budget
from tidegate_engine.scheduling.step_fit import StepTime, StepTimeModel

TRUTH = StepTime(base_seconds=0.02, seconds_per_token=5e-4, seconds_per_context_token=2e-7)


def served(model: StepTimeModel, truth: StepTime, num_steps: int, *, noise: float = 0.1, seed: int = 1) -> None:
    """Decode steps with a prompt chunk now and then, and a step in a hundred that the machine was busy elsewhere."""
    rng = random.Random(seed)
    for _ in range(num_steps):
        num_tokens, num_context_tokens = rng.choice([8, 8, 8, 40, 200]), rng.randrange(100_000)
        seconds = truth.predict(num_tokens, num_context_tokens) * rng.uniform(1 - noise, 1 + noise)
        model.observe(num_tokens, num_context_tokens, seconds * (8 if rng.random() < 0.01 else 1))


@pytest.mark.parametrize(("num_tokens", "num_context_tokens"), [(8, 1000), (8, 90_000), (200, 50_000), (1000, 20_000)])
def test_the_fit_predicts_steps_within_a_quarter_after_a_hundred(num_tokens, num_context_tokens):
    model = StepTimeModel(guess_seconds=0.5)
    served(model, TRUTH, 100)
    truth = TRUTH.predict(num_tokens, num_context_tokens)
    assert model.step_time.predict(num_tokens, num_context_tokens) == pytest.approx(truth, rel=0.25)


def test_the_fit_follows_a_machine_that_becomes_slower():
    model = StepTimeModel(guess_seconds=0.1)
    served(model, TRUTH, 500)
    slower = StepTime(0.04, 1e-3, 4e-7)
    served(model, slower, 600, seed=2)
    assert model.step_time.predict(64, 50_000) == pytest.approx(slower.predict(64, 50_000), rel=0.2)


def test_what_prompts_cost_is_not_forgotten_while_none_come():
    model = StepTimeModel(guess_seconds=0.1)
    served(model, TRUTH, 500)
    for _ in range(5000):
        model.observe(8, 50_000, TRUTH.predict(8, 50_000))
    assert model.step_time.seconds_per_token == pytest.approx(TRUTH.seconds_per_token, rel=0.2)


def test_no_coefficient_is_ever_negative():
    rng = random.Random(3)
    model = StepTimeModel(guess_seconds=0.1)
    for _ in range(500):
        model.observe(rng.randrange(1, 300), rng.randrange(100_000), rng.uniform(0.0, 0.1))
        fit = model.step_time
        assert min(fit.base_seconds, fit.seconds_per_token, fit.seconds_per_context_token) >= 0.0
        assert fit.predict(300, 100_000) < 1.0


@pytest.mark.parametrize("noise", [0.05, 0.2])
def test_one_step_in_twenty_exceeds_what_is_predicted_by_more_than_the_excess(noise):
    model = StepTimeModel(guess_seconds=0.1)
    served(model, TRUTH, 500, noise=noise)
    rng = random.Random(5)
    exceeded = []
    for _ in range(2000):
        fit = model.step_time
        seconds = TRUTH.predict(40, 20_000) * rng.uniform(1 - noise, 1 + noise)
        exceeded.append(seconds > fit.predict(40, 20_000) * (1 + fit.excess))
        model.observe(40, 20_000, seconds)
    assert sum(exceeded) / len(exceeded) == pytest.approx(0.05, abs=0.02)


def test_a_machine_that_is_busy_elsewhere_once_in_a_hundred_steps_is_not_a_noisy_one():
    model = StepTimeModel(guess_seconds=0.1)
    served(model, TRUTH, 2000, noise=0.02)
    assert model.step_time.excess < 0.1


LIMITS = BudgetLimits(itl_seconds=0.1, max_step_tokens=2048)
MEASURED = StepTime(0.02, 5e-4, 2e-7, num_samples=100)


def test_the_budget_fills_the_step_up_to_the_latency_objective():
    budget = token_budget(LIMITS, MEASURED, num_decoding=8, num_context_tokens=50_000)
    assert MEASURED.predict(budget, 50_000) <= 0.1 < MEASURED.predict(budget + 1, 50_000)


def test_the_budget_leaves_the_room_that_steps_vary_by():
    noisy = replace(MEASURED, excess=0.25)
    budget = token_budget(LIMITS, noisy, num_decoding=8, num_context_tokens=50_000)
    assert noisy.predict(budget, 50_000) <= 0.08 < noisy.predict(budget + 1, 50_000)


def test_steps_may_be_longer_while_nobody_waits_for_a_token():
    alone = token_budget(LIMITS, MEASURED, num_decoding=0, num_context_tokens=0)
    assert alone > token_budget(LIMITS, MEASURED, num_decoding=1, num_context_tokens=0)
    assert MEASURED.predict(alone, 0) <= 0.5


def test_prompts_advance_even_where_the_objective_cannot_be_met():
    budget = token_budget(LIMITS, MEASURED, num_decoding=300, num_context_tokens=10**7)
    assert budget == 300 + MIN_CHUNK_TOKENS


def test_the_budget_is_cautious_until_steps_are_measured():
    assert token_budget(LIMITS, StepTime(0.1), num_decoding=4, num_context_tokens=0) == 4 + FIRST_CHUNK_TOKENS


def test_the_budget_never_passes_what_the_runner_was_sized_for():
    fast = StepTime(1e-6, 1e-9, 0.0, num_samples=100)
    assert token_budget(LIMITS, fast, num_decoding=4, num_context_tokens=0) == 2048
    free = StepTime(0.0, 0.0, 0.0, num_samples=100)
    assert token_budget(LIMITS, free, num_decoding=4, num_context_tokens=0) == 2048
