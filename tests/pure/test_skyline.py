"""The peak that is kept up to date is the one that the formula computes from nothing, at every step."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scripted_engine import request_of
from tidegate_core.kv_demand import KvDemand
from tidegate_engine.scheduling.admission import Claim, peak_blocks
from tidegate_engine.scheduling.lengths import OutputLengths
from tidegate_engine.scheduling.skyline import Place, Prompt, Skyline
from tidegate_engine.scheduling.spot import BELIEVED_TOKENS, Expectations, expected_claim

KINDS = ((None,), (None, None), (None, 6), (9,), (None, 6, 6, 30))


class Lockstep:
    """Random requests that start, decode a token a step, and end early or at the latest."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.kv = KvDemand(rng.choice(KINDS), rng.choice([1, 4, 16]), max_chunk=8)
        self.skyline = Skyline(self.kv)
        self.running: list[Place] = []

    def claims(self, now: int) -> list[Claim]:
        return [Claim(end - now, base + now) for end, base, _ in self.running]

    def claim(self) -> Claim:
        return Claim(self.rng.randint(1, 40), self.rng.randint(0, 60))

    def step(self, now: int) -> None:
        for place in [each for each in self.running if each.end <= now or self.rng.random() < 0.05]:
            self.running.remove(place)
            self.skyline.remove(place)
        while self.rng.random() < 0.4:
            self.running.append(Place.of(self.claim(), now))
            self.skyline.add(self.running[-1])

    def check(self, now: int) -> None:
        prefilling = [self.claim() for _ in range(self.rng.choice([0, 0, 1, 3]))]
        claims, joining = self.claims(now), self.claim()
        prompts = [Prompt(claim) for claim in prefilling]
        assert self.skyline.peak(now, None, prompts) == peak_blocks(claims, prefilling, self.kv)
        assert self.skyline.peak(now, joining, prompts) == peak_blocks([*claims, joining], prefilling, self.kv)
        highest = max((instant.blocks for instant in self.skyline.instants(now)), default=0)
        assert highest == peak_blocks(claims, [], self.kv)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9))
def test_the_peak_kept_up_to_date_is_that_of_the_formula_at_every_step(seed):
    lockstep = Lockstep(random.Random(seed))
    for now in range(1, 60):
        lockstep.step(now)
        lockstep.check(now)


@given(st.sampled_from(KINDS), st.lists(st.integers(0, 200), max_size=20))
def test_many_sequences_at_once_hold_what_each_of_them_does(windows, num_tokens):
    kv = KvDemand(windows, 16, max_chunk=64)
    assert kv.each_decoding(num_tokens) == [kv.decoding_blocks(num) for num in num_tokens]
    assert kv.each_prefilling(num_tokens) == [kv.prefilling_blocks(num) for num in num_tokens]


@pytest.mark.parametrize("num_preemptions", [0, 1])
def test_an_expectation_is_at_most_a_few_tokens_old_and_never_beyond_the_latest_end(num_preemptions):
    lengths = OutputLengths(30)
    expectations = Expectations(lengths)
    request = request_of("r", 20, 200)
    request.num_preemptions = num_preemptions
    for num_outputs in range(1, 200):
        request.token_ids.append(7)
        ((left, held),) = expectations.claims([request])
        assert held == 19 + num_outputs
        assert 1 <= left <= request.num_outputs_left
        known = expected_claim(request, lengths).left
        if num_outputs % BELIEVED_TOKENS == 1:
            assert left == known, "looked up anew"
        assert left - known <= BELIEVED_TOKENS << num_preemptions
