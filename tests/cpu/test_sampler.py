"""Draws follow the distribution they should, and depend on nothing but the row, its seed and its place."""

from collections import Counter
from math import sqrt

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate_engine.compute.sampler import FIRST_CANDIDATES, Draw, gumbel_noise, sample

CPU = torch.device("cpu")


def draw(*, temperature=1.0, top_k=0, top_p=1.0, seed=0, index=0) -> Draw:
    return Draw(temperature, top_k, top_p, seed, index)


def counts(logits: torch.Tensor, num_draws: int, **options) -> Counter:
    draws = [draw(index=index, seed=7, **options) for index in range(num_draws)]
    return Counter(sample(logits.repeat(num_draws, 1), draws))


def chi_square(observed: Counter, probabilities: torch.Tensor) -> float:
    total = sum(observed.values())
    return sum((observed[token] - total * p) ** 2 / (total * p) for token, p in enumerate(probabilities.tolist()))


def chi_square_bound(degrees: int) -> float:
    """About five standard deviations above the mean: a fixed seed, so this is no lottery."""
    return degrees + 5 * sqrt(2 * degrees)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_softmax_of_the_scaled_logits(temperature):
    logits = torch.linspace(-1.5, 1.5, 12)
    observed = counts(logits, 6000, temperature=temperature)
    assert chi_square(observed, (logits / temperature).softmax(-1)) < chi_square_bound(11)


def test_draws_over_seeds_follow_the_softmax_too():
    logits = torch.linspace(-1.5, 1.5, 12)
    draws = [draw(seed=seed) for seed in range(6000)]
    observed = Counter(sample(logits.repeat(len(draws), 1), draws))
    assert chi_square(observed, logits.softmax(-1)) < chi_square_bound(11)


def test_noise_of_neighbouring_tokens_outputs_and_seeds_is_uncorrelated():
    keys = [(seed, index) for seed in (0, 1, 2**63 + 5) for index in range(4)]
    noise = gumbel_noise(keys, 20_000, CPU)
    bound = 5 / sqrt(20_000)
    between_rows = torch.corrcoef(noise) - torch.eye(len(keys))
    assert between_rows.abs().max() < bound
    for lag in (1, 2, 256):
        assert torch.corrcoef(torch.stack((noise[0, :-lag], noise[0, lag:])))[0, 1].abs() < bound


def test_noise_has_the_mean_and_spread_of_a_gumbel_distribution():
    noise = gumbel_noise([(3, 0)], 200_000, CPU)
    assert torch.isfinite(noise).all()
    assert abs(noise.mean() - 0.5772) < 0.02
    assert abs(noise.std() - torch.pi / sqrt(6)) < 0.02


@settings(max_examples=25, deadline=None)
@given(
    own=st.builds(
        Draw,
        temperature=st.sampled_from([0.0, 0.7, 1.3]),
        top_k=st.sampled_from([0, 1, 5]),
        top_p=st.sampled_from([0.3, 0.9, 1.0]),
        seed=st.integers(-(2**63), 2**64),
        index=st.integers(0, 100_000),
    ),
    place=st.integers(0, 10),
)
def test_a_row_is_drawn_alike_alone_and_in_any_batch(own, place):
    generator = torch.Generator().manual_seed(1)
    batch = torch.randn(11, 300, generator=generator) * 3
    draws = [draw(temperature=0.4 * row, top_k=row, top_p=1 - row / 20, seed=row, index=row) for row in range(11)]
    draws[place] = own
    alone = sample(batch[place : place + 1].clone(), [draws[place]])
    assert sample(batch.clone(), draws)[place] == alone[0]


def test_seeds_and_places_give_different_draws():
    logits = torch.zeros(1, 1000)
    assert len({sample(logits.clone(), [draw(seed=seed)])[0] for seed in range(50)}) > 40
    assert len({sample(logits.clone(), [draw(index=index)])[0] for index in range(50)}) > 40


def test_temperature_0_takes_the_largest_beside_rows_that_are_drawn():
    logits = torch.tensor([[0.0, 3.0, 1.0], [0.0, 0.0, 0.0], [5.0, 3.0, 1.0]])
    draws = [draw(temperature=0.0), draw(), draw(temperature=0.0, top_k=2, top_p=0.5)]
    tokens = sample(logits, draws)
    assert (tokens[0], tokens[2]) == (1, 0)


@pytest.mark.parametrize("temperature", [1e-5, 1e-6, 1e-40, 1e-320])
def test_a_temperature_close_to_0_takes_the_largest_however_close(temperature):
    """In fp32 30 / 1e-38 is infinite, and so is 20 / 1e-38: the first of both would win."""
    logits = torch.tensor([[20.0, 0.0, 30.0, -5.0]])
    assert sample(logits, [draw(temperature=temperature)]) == [2]


def test_top_k_draws_from_the_k_largest_in_their_proportions():
    logits = torch.tensor([0.0, 1.0, 2.0, 3.0, 2.5])
    observed = counts(logits, 4000, top_k=3)
    assert set(observed) == {2, 3, 4}
    kept = torch.tensor([float("-inf"), float("-inf"), 2.0, 3.0, 2.5]).softmax(-1)[2:]
    assert chi_square(Counter({token - 2: count for token, count in observed.items()}), kept) < chi_square_bound(2)


def test_top_p_keeps_the_fewest_tokens_that_reach_it():
    probabilities = torch.tensor([0.05, 0.5, 0.3, 0.15])
    assert set(counts(probabilities.log(), 500, top_p=0.49)) == {1}
    assert set(counts(probabilities.log(), 500, top_p=0.75)) == {1, 2}
    assert set(counts(probabilities.log(), 500, top_p=0.81)) == {1, 2, 3}


def test_top_p_is_taken_of_what_top_k_leaves():
    probabilities = torch.tensor([0.4, 0.3, 0.2, 0.1])
    assert set(counts(probabilities.log(), 500, top_k=2, top_p=0.55)) == {0}
    assert set(counts(probabilities.log(), 500, top_k=0, top_p=0.55)) == {0, 1}


def test_a_tiny_top_p_still_leaves_one_token():
    assert set(counts(torch.tensor([1.0, 2.0, 0.0]), 50, top_p=1e-6)) == {1}


def test_top_p_reaches_beyond_the_first_candidates():
    """A flat distribution over more tokens than are ranked at first."""
    vocab_size = 3 * FIRST_CANDIDATES
    logits = torch.linspace(0, 1e-3, vocab_size)
    tokens = set(counts(logits, 600, top_p=0.9))
    assert min(tokens) >= vocab_size * 0.09
    assert sum(token < vocab_size - FIRST_CANDIDATES for token in tokens) > 100
