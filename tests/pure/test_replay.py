"""Figures that the project promises, held on a small part of real traffic in virtual time."""

from dataclasses import replace

import pytest

from benchmarks.admission import with_peak, with_reservation
from benchmarks.eta import accuracy_of
from benchmarks.latency import measure
from benchmarks.prefix import infinite_cache
from benchmarks.replay import AZURE, Machine, Site, at_rate, replay
from tidegate_cli.bench.trace import TraceRequest, read_trace

AZURE_PART = read_trace(AZURE)[:300]
NUM_LEARNED_FROM = 120  # requests before about a hundred answers have ended, whose lengths are known then
MACHINE = Machine(2000, max_wait_seconds=30.0)


def test_the_peak_formula_fills_the_pool_a_tenth_more_than_reserving_everything_and_preempts_nobody():
    requests = at_rate(AZURE_PART[:200], 1.5)
    peak, reserved = with_peak(MACHINE, requests), with_reservation(MACHINE, requests)
    assert peak.occupancy(2000) >= 1.1 * reserved.occupancy(2000)
    assert peak.output_tokens_a_second() > reserved.output_tokens_a_second()
    assert peak.counters.preemptions == 0
    assert sum(peak.counters.finished.values()) == len(requests)


@pytest.mark.parametrize(
    ("factor", "machine"),
    [
        (1.2, replace(MACHINE, usual_output_tokens=1000)),
        (1.2, replace(MACHINE, num_blocks=6000, slots=12)),
    ],
)
def test_half_of_the_promised_waits_are_true_to_a_fifth(factor, machine):
    found = accuracy_of(replay(Site(machine), at_rate(AZURE_PART, factor)).outcomes[NUM_LEARNED_FROM:])
    assert found.num_waits > 40
    assert found.median_wait > 2.0
    assert found.median_error <= 0.2


def test_an_infinite_cache_hits_whole_blocks_of_earlier_prompts_and_never_the_last_token():
    first = TraceRequest(0.0, 1024, 1, (1, 2))
    assert infinite_cache([first]) == 0.0
    assert infinite_cache([first, first]) == (1024 - 16) / 2048
    longer, other = TraceRequest(0.0, 1030, 1, (1, 2, 3)), TraceRequest(0.0, 600, 1, (1, 9))
    assert infinite_cache([first, longer]) == 1024 / 2054
    assert infinite_cache([first, other]) == 512 / 1624


def test_tokens_come_at_the_objective_while_prompts_use_what_is_left_of_every_step():
    found = measure(0.1, noise=0.0)
    assert found.itl_p95 <= 0.102
    assert found.used_share > 0.9
    assert found.num_skipped == 0
