"""The bounded queue: who is refused, and whether the promised waits are true, in simulated time."""

import random
from dataclasses import dataclass, field

import pytest

from scripted_engine import ScriptedRunner, VirtualClock, engine_of, request_of
from tidegate_engine.counters import Refusal
from tidegate_engine.engine import Engine
from tidegate_engine.errors import QueueFull, TenantOverShare
from tidegate_engine.request import FinishReason, ServiceClass, Terms
from tidegate_engine.scheduling.arrivals import Arrivals
from tidegate_engine.scheduling.demand import Demand
from tidegate_engine.scheduling.door import SLICE_REQUESTS, Door
from tidegate_engine.scheduling.outlook import Outlook
from tidegate_engine.scheduling.queue import QueueLimits, RequestQueue, check_may_wait
from tidegate_engine.scheduling.step_fit import StepTime

STEP_TIME = StepTime(base_seconds=0.02, seconds_per_token=2e-4, seconds_per_context_token=1e-7)


@dataclass
class Site:
    """An engine in simulated time, its door, and when each request was let in and started."""

    engine: Engine
    door: Door
    clock: VirtualClock
    started: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, *, num_blocks: int = 400, slots: int = 16, max_requests: int = 64, max_wait_seconds: float = 1e6):
        runner = ScriptedRunner(num_blocks, step_time=STEP_TIME)
        engine = engine_of(runner, slots=slots)
        limits = QueueLimits(max_requests, max_wait_seconds)
        door = Door(engine, limits, clock=runner.clock)
        site = cls(engine, door, runner.clock)
        for i in range(12):  # steps are measured before anything is predicted
            engine.queue.add(request_of(f"warm-{i}", 100 + 20 * i, 3))
            site.run_until(lambda: not engine.has_work)
        return site

    def step(self) -> None:
        before = self.clock()
        self.engine.step()
        for request in self.engine.scheduler.running:
            self.started.setdefault(request.request_id, before)

    def run_until(self, predicate) -> None:
        for _ in range(20_000):
            if predicate():
                return
            self.step()
        raise AssertionError("never came true")

    def accepts(self, name: str, num_prompt: int, max_tokens: int) -> bool:
        try:
            self.door.enter(request_of(name, num_prompt, max_tokens))
        except QueueFull:
            return False
        return True

    def fill(self, rng: random.Random) -> int:
        """Requests until one is refused; how many were let in."""
        for i in range(10_000):
            if not self.accepts(f"r{i}", rng.randint(20, 600), rng.randint(50, 200)):
                return i
        raise AssertionError("never full")


def test_requests_queue_in_order_and_leave_from_the_middle():
    queue = RequestQueue()
    for name in "abc":
        queue.add(request_of(name, 1, 1))
    removed = queue.remove("b")
    assert removed
    assert removed.request_id == "b"
    assert queue.remove("b") is None
    head = queue.head(ServiceClass.GUARANTEED)
    assert head
    assert (head.request_id, len(queue)) == ("a", 2)
    assert [request.request_id for request in queue.snapshot()] == ["a", "c"]


def test_a_request_that_starts_at_once_is_never_refused():
    check_may_wait(QueueLimits(0, 0.1), [], wait_seconds=0.0)


def test_with_no_place_to_wait_the_retry_is_when_it_could_start():
    with pytest.raises(QueueFull, match="0 requests are waiting, the limit is 0") as refusal:
        check_may_wait(QueueLimits(0, 30.0), [], wait_seconds=4.0)
    assert refusal.value.retry_after_seconds == 4.0


def test_a_full_queue_says_when_its_next_place_is_free():
    with pytest.raises(QueueFull, match=r"3 requests are waiting, the limit is 3: retry in 1\.5 s") as refusal:
        check_may_wait(QueueLimits(3, 30.0), [1.5, 2.5, 9.0], wait_seconds=11.0)
    assert refusal.value.retry_after_seconds == 1.5


def test_a_wait_beyond_the_limit_is_refused_until_it_has_shrunk_to_it():
    with pytest.raises(QueueFull, match=r"the predicted wait is 42\.0 s, the limit is 30 s") as refusal:
        check_may_wait(QueueLimits(64, 30.0), [1.5, 2.5], wait_seconds=42.0)
    assert refusal.value.retry_after_seconds == pytest.approx(12.0)


def test_a_queue_full_of_tokens_says_when_enough_of_them_have_left():
    limits = QueueLimits(64, 60.0, max_prompt_tokens=1000)
    waits, tokens = [1.0, 2.0, 3.0], [300, 400, 200]
    check_may_wait(limits, waits, 4.0, waiting_tokens=tokens, num_prompt_tokens=100)
    said = "900 prompt tokens are waiting and 600 would join them, the limit is 1000"
    with pytest.raises(QueueFull, match=said) as refusal:
        check_may_wait(limits, waits, 4.0, waiting_tokens=tokens, num_prompt_tokens=600)
    assert (refusal.value.retry_after_seconds, refusal.value.refusal) == (2.0, Refusal.QUEUE_TOKENS)


def test_a_prompt_longer_than_the_queue_waits_once_nobody_else_does():
    limits = QueueLimits(64, 60.0, max_prompt_tokens=1000)
    check_may_wait(limits, [], 4.0, waiting_tokens=[], num_prompt_tokens=5000)
    with pytest.raises(QueueFull) as refusal:
        check_may_wait(limits, [1.0, 2.0], 4.0, waiting_tokens=[10, 10], num_prompt_tokens=5000)
    assert refusal.value.retry_after_seconds == 2.0


def test_of_several_reasons_the_one_that_lasts_longest_sets_the_retry():
    limits = QueueLimits(2, 10.0, max_prompt_tokens=1000)
    with pytest.raises(QueueFull) as refusal:
        check_may_wait(limits, [1.0, 30.0], 40.0, waiting_tokens=[500, 500], num_prompt_tokens=800)
    assert refusal.value.retry_after_seconds == 30.0


def test_only_a_tenant_over_its_share_is_told_that_it_is():
    limits = QueueLimits(1, 60.0)
    with pytest.raises(TenantOverShare, match="more than its share") as refusal:
        check_may_wait(limits, [2.0], 4.0, is_over_share=True)
    assert refusal.value.retry_after_seconds == 2.0
    check_may_wait(limits, [], 4.0, is_over_share=True)


def test_a_tenant_that_fills_the_queue_cannot_lock_another_one_out():
    site = Site.of(slots=1, max_requests=8)
    site.door.enter(request_of("running", 20, 200))
    site.step()
    loud, quiet = Terms(tenant="loud"), Terms(tenant="quiet")
    for i in range(8):
        site.door.enter(request_of(f"loud-{i}", 20, 200, terms=loud))
    with pytest.raises(TenantOverShare):
        site.door.enter(request_of("loud-again", 20, 200, terms=loud))
    for i in range(2):
        site.door.enter(request_of(f"quiet-{i}", 20, 200, terms=quiet))
    with pytest.raises(QueueFull, match="10 requests are waiting, the limit is 10"):
        site.door.enter(request_of("quiet-again", 20, 200, terms=quiet))


def test_a_burst_that_fits_is_let_in_whatever_the_queue_may_hold():
    site = Site.of(max_requests=0, slots=16)
    assert [site.accepts(f"r{i}", 10, 20) for i in range(20)] == [True] * 16 + [False] * 4


def test_the_limit_holds_while_the_engine_is_slower_than_forecast():
    site = Site.of(max_requests=8, slots=16)
    num_let_in = 0
    for _ in range(200):
        while site.accepts(f"r{num_let_in}", 10, 1):
            num_let_in += 1
        site.clock.sleep(0.01)  # and no step
    assert num_let_in == 16 + 8
    site.run_until(lambda: not site.engine.has_work)
    assert site.accepts("later", 10, 1)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    "limits", [{"max_requests": 24}, {"max_wait_seconds": 8.0}, {"num_blocks": 100, "max_requests": 24}]
)
def test_retry_after_is_close_to_when_the_request_is_let_in(seed, limits):
    site = Site.of(**limits)
    rng = random.Random(seed)
    for i in range(45):  # more than the limits allow, as if they had been wider before
        site.engine.queue.add(request_of(f"r{i}", rng.randint(20, 600), rng.randint(50, 200)))
    began = site.clock()
    site.run_until(lambda: site.clock() > began + 1.0)
    with pytest.raises(QueueFull) as refusal:
        site.door.enter(request_of("late", 300, 150))
    promised = refusal.value.retry_after_seconds
    refused_at = site.clock()
    site.run_until(lambda: site.accepts("late", 300, 150))
    assert promised > 1.0
    assert site.clock() - refused_at == pytest.approx(promised, rel=0.2)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("limits", [{"slots": 8}, {"num_blocks": 100}, {"slots": 64, "num_blocks": 2000}])
def test_the_predicted_wait_is_close_to_the_truth(seed, limits):
    site = Site.of(max_requests=40, **limits)
    site.fill(random.Random(seed))
    predicted = site.door.wait_seconds(300, 150)
    asked_at = site.clock()
    site.engine.queue.add(request_of("mine", 300, 150))
    site.run_until(lambda: "mine" in site.started)
    assert site.started["mine"] - asked_at == pytest.approx(predicted, rel=0.2, abs=0.1)


def test_an_answer_that_ends_early_opens_the_door_at_once():
    site = Site.of(slots=1, max_requests=0)
    assert site.accepts("first", 20, 200)
    site.step()
    assert not site.accepts("second", 20, 200)
    site.engine.end_soon("first", FinishReason.ABORT)
    site.step()
    assert site.accepts("second", 20, 200)


@dataclass
class TickingClock:
    """Time passes with every look at it, so that making a forecast costs some."""

    seconds: float = 0.0
    tick_seconds: float = 0.001

    def __call__(self) -> float:
        self.seconds += self.tick_seconds
        return self.seconds


def test_predicting_takes_only_a_small_part_of_the_time():
    engine, clock = engine_of(ScriptedRunner(100), slots=1), TickingClock()
    door = Door(engine, QueueLimits(0, 1.0), clock=clock)
    door.enter(request_of("first", 20, 200))
    engine.end_soon("first", FinishReason.ABORT)
    engine.step()
    with pytest.raises(QueueFull):
        door.enter(request_of("second", 20, 200))  # the forecast is too young to be made anew
    clock.seconds += 0.1
    door.enter(request_of("second", 20, 200))


def test_finding_out_that_no_spot_request_starts_in_time_counts_as_predicting():
    engine, clock = engine_of(ScriptedRunner(100), slots=1), TickingClock()
    door = Door(engine, QueueLimits(0, 1.0), clock=clock)
    door.enter(request_of("first", 20, 200))
    clock.tick_seconds = 0.01
    with pytest.raises(QueueFull):
        door.enter(request_of("spot", 20, 200, terms=Terms(service_class=ServiceClass.SPOT)))
    clock.tick_seconds = 0.001
    engine.end_soon("first", FinishReason.ABORT)
    engine.step()
    clock.seconds += 0.1
    with pytest.raises(QueueFull):
        door.enter(request_of("second", 20, 200))
    clock.seconds += 0.3
    door.enter(request_of("second", 20, 200))


def test_that_no_spot_request_starts_in_time_is_found_out_once():
    """Many of them would else keep the event loop from everybody's answers: each plays on to the horizon."""
    site, arrivals = Site.of(slots=1), Arrivals()
    assert site.accepts("first", 20, 200)
    site.step()
    for number in range(10):
        arrivals.note(Demand(20, 20, 0, 100, 100, 100), site.clock() + 0.1 * number)
    outlook = Outlook(site.engine, now=site.clock() + 1.0, horizon_seconds=10.0, arrivals=arrivals)
    seconds, after = outlook.place(Demand(100, 100, 0, 50, 50, 50, is_spot=True))
    assert seconds >= 10.0
    other_seconds, other_after = outlook.place(Demand(50, 50, 0, 20, 20, 20, is_spot=True))
    assert other_seconds == seconds
    assert other_after is after
    assert outlook.place(Demand(20, 20, 0, 5, 5, 5))[0] < 10.0


def test_a_step_that_is_just_being_recorded_breaks_no_forecast():
    """The door reads requests while the engine thread writes: computed up to the last token, nothing sampled yet."""
    site = Site.of(slots=1)
    site.engine.queue.add(request_of("first", 20, 200))
    (request,) = site.engine.scheduler.schedule(100).requests
    request.num_computed_tokens = 20
    assert site.door.wait_seconds(900, 300) > 1.0


def test_an_idle_engine_predicts_no_wait():
    assert Site.of().door.wait_seconds(900, 300) == 0.0


def test_a_long_queue_is_looked_at_in_slices_and_every_wait_is_known_in_the_end():
    site = Site.of(slots=1, max_requests=10_000)
    for i in range(5 * SLICE_REQUESTS):
        site.engine.queue.add(request_of(f"r{i}", 20, 4))
    site.clock.sleep(1.0)  # what the door knew of an idle engine is old by now
    first = site.door.wait_seconds(20, 4)
    assert first == 0.0, "the first slice of a new look is played, the old one still answers"
    site.clock.sleep(0.01)
    waits = [site.door.wait_seconds(20, 4) for _ in range(6)]
    assert waits[-1] > 5 * SLICE_REQUESTS * 0.02
