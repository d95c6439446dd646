"""What forecasts of waits know of two classes: who counts for whom, who goes first, and who is still to come."""

from tidegate_core.kv_demand import KvDemand
from tidegate_engine.scheduling.arrivals import MAX_AGE_SECONDS, Arrivals, Coming
from tidegate_engine.scheduling.budget import BudgetLimits
from tidegate_engine.scheduling.demand import Demand
from tidegate_engine.scheduling.forecast import Forecast, Rules
from tidegate_engine.scheduling.step_fit import StepTime

STEP_SECONDS = 0.01


def forecast_of(*running: Demand, slots: int = 8, num_blocks: int = 100, seconds_per_token: float = 0.0) -> Forecast:
    step_time = StepTime(STEP_SECONDS, seconds_per_token)
    rules = Rules(slots, num_blocks, KvDemand(), BudgetLimits(0.1), step_time, horizon_seconds=100.0, bucket_steps=16)
    forecast = Forecast(rules)
    for demand in running:
        forecast.admit(demand)
    return forecast


def waiting(num_tokens: int = 16, *, expected: int = 50, most: int = 50, is_spot: bool = False) -> Demand:
    return Demand(num_tokens, num_tokens, 0, expected, expected, most, is_spot)


def decoding(num_tokens: int = 16, *, expected: int = 50, most: int = 50) -> Demand:
    return Demand(1, num_tokens, 1, expected, expected, most)


def test_guaranteed_requests_are_counted_at_most_for_each_other_and_as_likely_for_spot_requests():
    forecast = forecast_of(decoding(most=1400))
    waits = {is_spot: forecast.place(waiting(most=1400, is_spot=is_spot))[0] for is_spot in (False, True)}
    assert waits[True] == 0.0
    assert waits[False] > 40 * STEP_SECONDS, "until the one that runs has ended"


def test_a_spot_request_starts_beside_a_guaranteed_one_that_only_blocks_keep_waiting():
    forecast = forecast_of(decoding(most=1400))
    forecast.others.append(waiting(most=1400))
    assert forecast.place(waiting(is_spot=True))[0] == 0.0


def test_a_spot_request_waits_for_guaranteed_ones_that_wait_for_a_slot():
    forecast = forecast_of(decoding(), slots=1)
    alone, _ = forecast.place(waiting(is_spot=True))
    forecast.others.append(waiting(expected=100, most=100))
    behind, _ = forecast.place(waiting(is_spot=True))
    assert behind > alone + 90 * STEP_SECONDS


def test_a_spot_request_waits_for_guaranteed_ones_that_are_expected_to_come():
    forecast = forecast_of(decoding(), slots=1)
    alone, _ = forecast.place(waiting(is_spot=True))
    arrivals = Arrivals()
    for number in range(10):
        arrivals.note(waiting(), now=0.4 * number)
    forecast.coming = arrivals.expected(now=4.0)
    assert forecast.place(waiting(is_spot=True))[0] > 10 * alone, "as fast as they are served"


def test_a_spot_request_that_has_room_now_waits_for_nobody_who_is_only_expected():
    """Else an idle engine with one slot would refuse it because of who came a minute ago."""
    arrivals = Arrivals()
    for number in range(10):
        arrivals.note(waiting(), now=0.4 * number)
    forecast = forecast_of(slots=1)
    forecast.coming = arrivals.expected(now=4.0)
    seconds, after = forecast.place(waiting(is_spot=True))
    assert seconds == 0.0
    assert after.place(waiting(is_spot=True))[0] > 0.0


def test_steps_are_longer_with_spot_requests_that_start_while_a_guaranteed_one_waits():
    forecast = forecast_of(decoding(most=1400), seconds_per_token=0.001)
    alone, _ = forecast.place(waiting(most=1400))
    forecast.others.extend([waiting(expected=100, most=100, is_spot=True)] * 3)
    beside, _ = forecast.place(waiting(most=1400))
    assert beside > 1.1 * alone


def test_those_who_came_lately_come_again_at_the_same_distances():
    arrivals = Arrivals()
    few, many = waiting(10), waiting(20)
    for seconds, demand in ((100.0, few), (101.0, many), (102.0, few), (104.0, many)):
        assert arrivals.expected(now=seconds) == Coming(), "too few to tell"
        arrivals.note(demand, seconds)
    coming = arrivals.expected(now=110.0)
    assert coming.by(4.0, 0) == [few, many, few, many]
    assert coming.by(9.9, 4) == []
    assert coming.by(12.0, 3) == [many, few, many, few]
    assert len(coming.by(1e9, 0)) == 25, "within a minute, and then nobody"
    assert arrivals.expected(now=104.0 + MAX_AGE_SECONDS) == Coming()


def test_a_burst_that_came_at_once_is_not_expected_without_end():
    arrivals = Arrivals()
    for _ in range(5):
        arrivals.note(waiting(), now=1.0)
    assert len(arrivals.expected(now=1.0).by(1e9, 0)) <= 5 * (MAX_AGE_SECONDS + 1)
