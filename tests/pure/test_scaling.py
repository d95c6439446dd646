"""The scaling policy by situation, by property, and in a closed loop with cold starts."""

import random
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet import Fleet
from tidegate_core.samples import Counters, History, Memory, Round, Sample
from tidegate_core.scaling import Decision, Limit, Policy, decide

NOW = 1_000_000.0
POLICY = Policy(min_replicas=1, max_replicas=10, slots=8, ttft_seconds=2.0, hold_seconds=120.0)
SCRAPE_SECONDS = 5.0


def sample(boot: str = "boot", **fields: Any) -> Sample:
    """One replica: idle unless told otherwise."""
    counters = Counters(**{name: fields.pop(name) for name in Counters.__dataclass_fields__ if name in fields})
    idle = {"running": 0, "waiting": 0, "kv_blocks_used": 0, "kv_blocks_total": 100, "eta_seconds": 0.0}
    return Sample(boot_id=boot, counters=counters, **{**idle, **fields})


def scrape(*replicas: Sample, time: float = NOW, num_silent: int = 0, **fields: Any) -> Round:
    """One round of replicas r0, r1, ... and some that did not answer."""
    samples = {f"r{number}": replica for number, replica in enumerate(replicas)}
    silent = {f"silent{number}" for number in range(num_silent)}
    return Round(time, frozenset({*samples, *silent}), samples, **fields)


def history(*rounds: Round, desired: int | None = None, **memory: Any) -> History:
    """Rounds after a long quiet time, in which a scaler has been running."""
    size = len(rounds[-1].ready) if desired is None else desired
    return History(Memory(desired=size, **{"decided_at": NOW - SCRAPE_SECONDS, **memory}), rounds)


def steady(*replicas: Sample, **fields: Any) -> tuple[Round, ...]:
    """The same state for the last half minute."""
    return tuple(scrape(*replicas, time=NOW - ago, **fields) for ago in (25.0, 20.0, 15.0, 10.0, 5.0, 0.0))


def decided(*rounds: Round, policy: Policy = POLICY, **fields: Any) -> Decision:
    return decide(history(*rounds, **fields), policy, NOW)


BUSY = sample(running=8, waiting=6, kv_blocks_used=90, eta_seconds=4.0)
CALM = sample(running=3, kv_blocks_used=20)
IDLE = sample()


# up


def test_a_long_predicted_wait_orders_one_more() -> None:
    decision = decided(*steady(BUSY))
    assert decision.desired == 2
    assert decision.reason.startswith("1 -> 2: predicted wait 4.0 s is over half of 2 s")


def test_a_queue_everywhere_orders_more_although_slots_are_free() -> None:
    starved = sample(running=4, waiting=3, kv_blocks_used=100, eta_seconds=0.5)
    assert decided(*steady(starved, starved)).desired == 3


def test_replicas_that_prompts_keep_busy_order_more_although_their_kv_is_nearly_empty() -> None:
    prefilling = sample(running=2, waiting=1, kv_blocks_used=5, eta_seconds=3.0)
    decision = decided(*steady(prefilling))
    assert decision.desired == 2
    assert decision.inputs["kvShare"] == "0.05"


def test_nearly_full_slots_order_more_before_anything_waits() -> None:
    assert decided(*steady(sample(running=8), sample(running=8))).desired == 3


def test_a_deep_queue_orders_several_at_once_but_at_most_doubles_or_adds_four() -> None:
    drowned = sample(running=8, waiting=64, eta_seconds=300.0)
    assert decided(*steady(drowned)).desired == 5
    assert decided(*steady(*[drowned] * 5), policy=replace(POLICY, max_replicas=100)).desired == 10


def test_refused_requests_order_a_quarter_more() -> None:
    before = scrape(*[sample(running=2)] * 8, time=NOW - 5)
    after = scrape(sample(running=2, rejects=1), *[sample(running=2)] * 7)
    decision = decided(before, after)
    assert decision.desired == 10
    assert "1 requests refused in 30 s" in decision.reason


@pytest.mark.parametrize(
    ("preemptions", "arrivals", "desired"),
    [
        pytest.param(2, 10, 2, id="two are no burst"),
        pytest.param(3, 10, 3, id="three are a burst"),
        pytest.param(3, 100, 2, id="three of many arrivals are none"),
        pytest.param(6, 100, 3, id="five percent of the arrivals are one"),
    ],
)
def test_a_burst_of_preemptions_orders_more(preemptions: int, arrivals: int, desired: int) -> None:
    before = scrape(CALM, CALM, time=NOW - 20)
    after = scrape(replace(CALM, counters=Counters(arrivals=arrivals, preemptions=preemptions)), CALM)
    assert decided(before, after).desired == desired


def test_preemptions_on_one_replica_of_many_are_not_a_reason_for_more() -> None:
    before = scrape(*[CALM] * 5, time=NOW - 20)
    after = scrape(replace(CALM, counters=Counters(preemptions=9)), *[CALM] * 4)
    assert decided(before, after).desired == 5


def test_old_preemptions_count_no_more() -> None:
    old = replace(CALM, counters=Counters(preemptions=50))
    assert decided(scrape(CALM, time=NOW - 60), scrape(old, time=NOW - 40), *steady(old)).desired == 1


@pytest.mark.parametrize("second_boot", ["boot", "another"])
def test_a_counter_that_fell_is_a_restart_and_its_new_value_the_increase(second_boot: str) -> None:
    before = scrape(sample(preemptions=100), time=NOW - 5)
    assert decided(before, scrape(sample(second_boot, preemptions=2))).desired == 1
    assert decided(before, scrape(sample(second_boot, preemptions=4))).desired == 2


def test_a_new_boot_id_is_a_restart_although_the_counter_rose() -> None:
    before = scrape(sample(preemptions=2), time=NOW - 5)
    assert decided(before, scrape(sample(preemptions=4))).desired == 1
    assert decided(before, scrape(sample("another", preemptions=4))).desired == 2


def test_a_first_sample_says_nothing_about_increase() -> None:
    assert decided(scrape(sample(preemptions=500, rejects=500))).desired == 1


def test_replicas_on_their_way_are_capacity_so_one_backlog_orders_once() -> None:
    decision = decided(*steady(BUSY), desired=2, last_scale_up=NOW - 20)
    assert decision.desired == 2


def test_a_replica_that_just_came_gets_time_to_show_its_effect() -> None:
    rounds = (*steady(BUSY)[:-2], scrape(BUSY, IDLE, time=NOW - 5), scrape(BUSY, IDLE))
    assert decided(*rounds).desired == 2


def test_two_decisions_in_one_tick_order_once() -> None:
    drowned = sample(running=8, waiting=64, eta_seconds=300.0)
    assert decided(*steady(drowned), last_scale_up=NOW - 1).desired == 1


def test_no_room_in_the_cluster_stops_orders() -> None:
    decision = decided(*steady(BUSY, num_unschedulable=1), desired=1)
    assert (decision.desired, decision.limit) == (1, Limit.UNSCHEDULABLE)
    assert "no node has room for 1 replicas" in decision.reason


def test_the_maximum_stops_orders_and_says_so() -> None:
    decision = decided(*steady(BUSY), policy=replace(POLICY, max_replicas=1))
    assert (decision.desired, decision.limit) == (1, Limit.MAXIMUM)
    assert "held at the pool's maximum, otherwise 2" in decision.reason


# bounds


@pytest.mark.parametrize(("low", "high", "desired"), [(3, 5, 3), (1, 1, 1)])
def test_new_bounds_hold_at_once_even_without_data(low: int, high: int, desired: int) -> None:
    policy = replace(POLICY, min_replicas=low, max_replicas=high)
    assert decided(scrape(num_silent=2), policy=policy).desired == desired


# hold and down


def run(
    rounds: int, *replicas: Sample, start: History, policy: Policy = POLICY, **fields: Any
) -> tuple[History, list[Decision]]:
    """The same state, scraped and decided for a while."""
    decisions = []
    for number in range(1, rounds + 1):
        now = NOW + number * SCRAPE_SECONDS
        start = start.add(scrape(*replicas, time=now, **fields))
        decisions.append(decide(start, policy, now))
        start = start.remember(decisions[-1].memory)
    return start, decisions


def test_a_replica_leaves_only_after_the_hold() -> None:
    _, decisions = run(30, CALM, IDLE, start=History(Memory(desired=2)))
    changed = next(number for number, each in enumerate(decisions) if each.desired == 1)
    assert changed * SCRAPE_SECONDS == POLICY.hold_seconds
    assert decisions[changed].reason.startswith("2 -> 1: 1 would have done for 120 s: 3.0 running of 1 x 8 slots")


def test_none_leaves_while_fewer_would_have_a_queue_everywhere() -> None:
    """Right after a burst with a short hold: the mean of the window still has requests waiting."""
    policy = replace(POLICY, hold_seconds=3.0)
    queued, calm = sample(running=6, waiting=8), sample(running=1)
    rounds = (*(scrape(queued, calm, calm, time=NOW - ago) for ago in (25, 20)),
              *(scrape(calm, calm, calm, time=NOW - ago) for ago in (15, 10, 5, 0)))  # fmt: skip
    past = history(*rounds, peaks=((NOW - 5, 1),))
    decision = decide(past, policy, NOW)
    assert decision.desired == 3, decision.reason


def test_a_restarted_scaler_holds_first() -> None:
    start, _ = run(30, CALM, IDLE, CALM, start=History(Memory(desired=3)))
    assert start.memory.desired == 2
    forgotten = Memory(desired=3)
    _, decisions = run(20, CALM, IDLE, CALM, start=History(forgotten))
    assert {each.desired for each in decisions} == {3}


def test_one_leaves_at_a_time_in_a_small_fleet() -> None:
    _, decisions = run(80, *[IDLE] * 4, start=History(Memory(desired=4)))
    sizes = [each.desired for each in decisions]
    steps = [before - after for before, after in pairwise(sizes) if before != after]
    assert steps == [1, 1, 1]
    first, second = (index for index in range(1, 60) if sizes[index] != sizes[index - 1] and sizes[index] > 1)
    assert (second - first) * SCRAPE_SECONDS >= 60


@pytest.mark.parametrize(
    ("replicas", "why"),
    [
        pytest.param((sample(running=4), sample(running=3)), "one could not take all running requests", id="slots"),
        pytest.param((sample(kv_blocks_used=50), sample(kv_blocks_used=30)), "one could not hold the KV", id="KV"),
        pytest.param((sample(running=1, waiting=2), sample(running=1, waiting=2)), "requests wait", id="queue"),
    ],
)
def test_none_leaves_when_one_fewer_would_not_do(replicas: tuple[Sample, ...], why: str) -> None:
    _, decisions = run(60, *replicas, start=History(Memory(desired=2)))
    assert min(each.desired for each in decisions) >= 2, why


@pytest.mark.parametrize(
    "trouble",
    [
        pytest.param({"is_rolling_out": True}, id="while rolling out"),
        pytest.param({"num_silent": 1}, id="while a quarter of the replicas is silent"),
    ],
)
def test_none_leaves_while_anything_is_unclear(trouble: dict[str, Any]) -> None:
    start, decisions = run(60, *[IDLE] * 3, start=History(Memory(desired=4)), **trouble)
    assert {each.desired for each in decisions} == {4}
    assert all(each.has_metrics for each in decisions) == ("num_silent" not in trouble)
    shifted = History(start.memory, tuple(replace(each, time=each.time - 60 * SCRAPE_SECONDS) for each in start.rounds))
    memory = replace(start.memory, peaks=tuple((time - 300, n) for time, n in start.memory.peaks), decided_at=NOW)
    _, after = run(10, *[IDLE] * 4, start=replace(shifted, memory=memory))
    assert {each.desired for each in after} == {4}, "the hold starts over afterwards"


def test_a_replica_that_finds_no_node_does_not_keep_the_others_from_leaving() -> None:
    _, decisions = run(80, *[IDLE] * 3, num_unschedulable=1, start=History(Memory(desired=4)))
    assert decisions[-1].desired == 1


def test_a_burst_between_calm_rounds_keeps_the_size_for_the_hold_although_the_mean_is_low() -> None:
    past = History(Memory(desired=3))
    left = 0.0
    while past.memory.desired == 3 and left < 600:
        left += SCRAPE_SECONDS
        is_burst = 90 < left <= 110
        past = past.add(scrape(*[sample(running=6 if is_burst else 1)] * 3, time=NOW + left))
        past = past.remember(decide(past, POLICY, NOW + left).memory)
    assert 110 + POLICY.hold_seconds <= left < 600


def test_a_single_missed_scrape_among_many_is_borne() -> None:
    _, decisions = run(40, *[IDLE] * 9, num_silent=1, start=History(Memory(desired=10)))
    assert decisions[-1].desired < 10


def test_more_can_be_ordered_on_what_is_left_of_the_data() -> None:
    assert decided(*steady(BUSY, num_silent=1)).desired == 3


def test_silent_replicas_count_like_the_others() -> None:
    assert decided(*steady(sample(running=7), num_silent=1)).desired == 3


def test_a_queue_that_a_new_replica_has_yet_to_take_over_keeps_the_size_needed() -> None:
    queue = sample(running=1, waiting=6, eta_seconds=0.5)
    rounds = (*steady(queue)[:-2], scrape(queue, IDLE, time=NOW - 5), scrape(queue, IDLE))
    memory = decided(*rounds, desired=4, peaks=((NOW - 5, 1),)).memory
    assert memory.peaks[-1] == (NOW, 4)


def test_no_data_at_all_holds() -> None:
    decision = decided(*steady(num_silent=3))
    assert (decision.desired, decision.has_metrics) == (3, False)
    assert "no load report from 3 ready replicas" in decision.reason


def test_data_older_than_three_scrapes_is_no_data() -> None:
    decision = decided(scrape(BUSY, time=NOW - 16))
    assert (decision.desired, decision.has_metrics) == (1, False)


def test_an_overload_is_over_a_minute_after_its_last_cause_and_the_hold_begins_then() -> None:
    memory = decided(*steady(BUSY)).memory
    assert memory.panic_until == NOW + 60
    _, decisions = run(50, IDLE, IDLE, start=History(replace(memory, desired=2)))
    changed = next(number for number, each in enumerate(decisions, start=1) if each.desired == 1)
    assert 60 + POLICY.hold_seconds - SCRAPE_SECONDS <= changed * SCRAPE_SECONDS <= 60 + POLICY.hold_seconds


def test_a_rate_that_was_too_much_for_fewer_is_remembered() -> None:
    strained = Memory(desired=2, strain_per_second=1.0, strain_time=NOW)
    start = History(strained)
    decisions = []
    for number in range(1, 61):
        now = NOW + number * SCRAPE_SECONDS
        light = sample(running=1, arrivals=int(number * SCRAPE_SECONDS * 0.5))
        start = start.add(scrape(light, light, time=now))
        decisions.append(decide(start, POLICY, now))
        start = start.remember(decisions[-1].memory)
    assert {each.desired for each in decisions} == {2}, "one request a second was too much for one replica"


def with_arrivals(per_scrape: int, **fields: Any) -> tuple[Round, ...]:
    """Half a minute of one replica that gets requests evenly."""
    return tuple(
        scrape(sample(arrivals=number * per_scrape, **fields), time=NOW - (6 - number) * SCRAPE_SECONDS)
        for number in range(7)
    )


def test_the_rate_at_which_a_fleet_at_rest_proves_too_small_is_kept() -> None:
    rounds = with_arrivals(10, running=8, waiting=6, eta_seconds=4.0)
    memory = decided(*rounds).memory
    assert (memory.desired, memory.strain_per_second, memory.strain_time) == (2, pytest.approx(2.0), NOW)
    pending = decided(*rounds, desired=2, policy=replace(POLICY, min_replicas=3)).memory
    assert (pending.desired, pending.strain_per_second) == (3, None), "a new minimum says nothing about load"


def test_of_two_strains_the_lower_counts_but_an_old_one_fades() -> None:
    rounds = with_arrivals(10, running=8, waiting=6, eta_seconds=4.0)
    fresh = decided(*rounds, strain_per_second=0.5, strain_time=NOW).memory
    assert fresh.strain_per_second == pytest.approx(0.5)
    old = decided(*rounds, strain_per_second=0.5, strain_time=NOW - 4 * 3600).memory
    assert old.strain_per_second == pytest.approx(1.0)


# properties

replica_samples = st.builds(
    sample,
    st.sampled_from(["a", "b"]),
    running=st.integers(0, 8),
    waiting=st.integers(0, 64),
    kv_blocks_used=st.integers(0, 100),
    eta_seconds=st.floats(0, 1000),
    arrivals=st.integers(0, 1000),
    rejects=st.integers(0, 5),
    preemptions=st.integers(0, 20),
)
rounds_of_a_fleet = st.lists(
    st.tuples(st.lists(replica_samples, max_size=6), st.integers(0, 3), st.integers(0, 1), st.booleans()),
    min_size=1,
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(fleet=rounds_of_a_fleet, low=st.integers(1, 4), extra=st.integers(0, 6), start=st.integers(1, 12))
def test_whatever_happens_the_bounds_hold_and_the_same_past_gives_the_same_answer(
    fleet: list[Any], low: int, extra: int, start: int
) -> None:
    policy = replace(POLICY, min_replicas=low, max_replicas=low + extra)
    past = History(Memory(desired=start))
    for number, (replicas, silent, stuck, rolling) in enumerate(fleet):
        now = NOW + number * SCRAPE_SECONDS
        past = past.add(scrape(*replicas, time=now, num_silent=silent, num_unschedulable=stuck, is_rolling_out=rolling))
        decision = decide(past, policy, now)
        assert decision == decide(past, policy, now)
        assert low <= decision.desired <= low + extra
        assert decision.reason
        assert "\n" not in decision.reason
        past = past.remember(decision.memory)


@settings(max_examples=40, deadline=None)
@given(fleet=rounds_of_a_fleet)
def test_a_decision_repeated_at_once_changes_nothing_more(fleet: list[Any]) -> None:
    past = History(Memory(desired=2, decided_at=NOW))
    for number, (replicas, silent, _, _) in enumerate(fleet):
        past = past.add(scrape(*replicas, time=NOW + number * SCRAPE_SECONDS, num_silent=silent))
    now = past.rounds[-1].time
    first = decide(past, POLICY, now)
    assert decide(past.remember(first.memory), POLICY, now).desired == first.desired


# closed loop


@pytest.mark.parametrize(
    ("slots", "cold_start_seconds", "load"), [(4, 10, 0.7), (4, 60, 1.5), (8, 10, 1.5), (32, 60, 1.5)]
)
def test_constant_load_turns_the_size_around_at_most_once(slots: int, cold_start_seconds: float, load: float) -> None:
    policy = Policy(1, 20, slots, ttft_seconds=2.0, hold_seconds=300.0, cold_start_seconds=cold_start_seconds)
    fleet = Fleet(policy, random.Random(1), is_noisy=False)
    fleet.run(4000, load * slots / (0.02 + 0.01 * slots) / fleet.tokens_per_request)
    changes = [after - before for before, after in pairwise(fleet.sizes)]
    turns = sum(1 for before, after in pairwise(changes) if before * after < 0)
    assert turns <= 1, fleet.sizes
    assert fleet.sizes[-1] <= 3, fleet.sizes


def test_a_burst_goes_up_and_down_again_without_a_refusal() -> None:
    policy = Policy(1, 4, 4, ttft_seconds=2.0, hold_seconds=30.0, cold_start_seconds=10.0)
    fleet = Fleet(policy, random.Random(2))
    fleet.run(60, 0.05)
    fleet.run(120, 1.2)
    peak = fleet.history.memory.desired
    fleet.run(900, 0.05)
    assert peak >= 2
    assert fleet.history.memory.desired == 1
    assert sum(replica.rejects for replica in fleet.replicas) == 0


def test_a_clock_that_was_set_back_hides_nothing_that_is_seen_since() -> None:
    """An hour back: rounds of the future neither pass for the present nor hold an order."""
    ordered = Memory(desired=2, last_scale_up=NOW + 3600, last_scale_down=NOW + 3600)
    history = History(ordered).add(scrape(sample(), time=NOW + 3600)).add(scrape(BUSY, BUSY))
    assert [each.time for each in history.rounds] == [NOW]
    assert decide(history, POLICY, NOW).desired > 2
