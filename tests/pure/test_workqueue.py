"""The work queue: one run at a time for a key, merged adds, backoff that no event storm can shorten, resync."""

import asyncio
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate_operator.control.schedule import Schedule, Timing
from tidegate_operator.control.workqueue import WorkQueue
from tidegate_operator.errors import OperatorError
from tidegate_operator.kube import error_of
from tidegate_operator.resources import Key

A, B = ("team", "a"), ("team", "b")
TIMING = Timing(debounce_seconds=1, resync_seconds=100, first_backoff_seconds=2, longest_backoff_seconds=20, jitter=0)


def schedule(timing: Timing = TIMING) -> Schedule:
    return Schedule(timing, random.Random(1))


def test_a_burst_of_events_is_one_run_after_the_debounce() -> None:
    queue = schedule()
    for moment in (0.0, 0.2, 0.4):
        queue.add(A, moment)
    assert queue.take(0.9) is None
    assert queue.take(1.0) == A
    assert queue.take(99.0) is None


def test_an_event_during_a_run_makes_one_more_run() -> None:
    queue = schedule()
    queue.add(A, 0)
    assert queue.take(1) == A
    queue.add(A, 1.5)
    queue.add(A, 1.6)
    assert queue.take(50) is None, "it runs already"
    queue.succeeded(A, 60, after_seconds=None)
    assert queue.take(60.5) is None
    assert queue.take(61) == A


def test_the_longest_due_key_comes_first() -> None:
    queue = schedule()
    queue.add(B, 0)
    queue.add(A, 1)
    assert [queue.take(9), queue.take(9)] == [B, A]


def test_a_failing_key_waits_longer_each_time_and_events_do_not_shorten_it() -> None:
    queue = schedule()
    queue.add(A, 0)
    now, waits = 1.0, []
    for _ in range(6):
        assert queue.take(now) == A
        waits.append(queue.failed(A, now))
        queue.add(A, now)
        assert queue.next_due() == now + waits[-1]
        now += waits[-1]
    assert waits == [2, 4, 8, 16, 20, 20]


def test_a_success_forgets_the_failures() -> None:
    queue = schedule()
    queue.add(A, 0)
    queue.take(1)
    queue.failed(A, 1)
    queue.take(3)
    queue.succeeded(A, 3, after_seconds=None)
    queue.add(A, 4)
    assert queue.take(5) == A
    assert queue.failed(A, 5) == 2


@pytest.mark.parametrize(("asked", "due"), [(7.0, 7.0), (5000.0, 100.0), (None, None)])
def test_the_next_run_is_when_it_was_asked_for_but_not_after_the_resync(asked: float | None, due: float | None) -> None:
    queue = schedule()
    queue.add(A, -1)
    queue.take(0)
    queue.succeeded(A, 0, asked)
    assert queue.next_due() == due


def test_an_event_comes_before_a_far_resync() -> None:
    queue = schedule()
    queue.add(A, -1)
    queue.take(0)
    queue.succeeded(A, 0, 50)
    queue.add(A, 10)
    assert queue.take(11) == A
    assert queue.next_due() is None


def test_backoff_is_jittered() -> None:
    queue = schedule(Timing(first_backoff_seconds=10, longest_backoff_seconds=10, jitter=0.2))
    waits = set()
    for _ in range(20):
        queue.add(A, 0)
        queue.take(1000)
        waits.add(queue.failed(A, 0))
        queue.take(1000)
    assert len(waits) > 15
    assert all(8 <= wait <= 12 for wait in waits)


STEPS = st.lists(st.tuples(st.sampled_from(["add", "take", "ok", "fail"]), st.sampled_from([A, B]), st.integers(0, 5)))


@given(STEPS)
def test_no_key_runs_twice_at_once_and_no_event_is_lost(steps: list[tuple[str, Key, int]]) -> None:
    queue, now = schedule(), 0.0
    running: set[Key] = set()
    owed: set[Key] = set()  # added, and not taken since
    for action, key, seconds in steps:
        now += seconds
        if action == "add":
            queue.add(key, now)
            owed.add(key)
        elif action == "take":
            taken = queue.take(now)
            if taken is not None:
                assert taken not in running
                running.add(taken)
                owed.discard(taken)
        elif key in running:
            running.discard(key)
            queue.failed(key, now) if action == "fail" else queue.succeeded(key, now, None)
    for key in running:
        queue.succeeded(key, now, None)
    drained = set()
    while (taken := queue.take(now + 1000)) is not None:
        drained.add(taken)
        queue.succeeded(taken, now, None)
    assert owed <= drained


class Clock:
    """Moves only when told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def turn(predicate: Callable[[], bool]) -> None:
    """Let the loop run until the predicate holds; every step is a turn of the loop, no time passes."""
    for _ in range(1000):
        if predicate():
            return
        await asyncio.sleep(0)
    raise AssertionError("nothing happened")


def test_workers_run_side_by_side_but_not_more_than_allowed() -> None:
    async def scenario() -> int:
        clock, gate = Clock(), asyncio.Event()
        running, most = 0, 0

        async def reconcile(_: Key) -> float | None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await gate.wait()
            running -= 1
            return None

        queue = WorkQueue(reconcile, schedule(), num_workers=2, clock=clock)
        work = asyncio.create_task(queue.run())
        for number in range(5):
            queue.add(("team", f"p{number}"))
        clock.now = 5
        queue.add(A)
        await turn(lambda: running == 2)
        assert queue.depth >= 5
        gate.set()
        await turn(lambda: running == 0)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        return most

    assert asyncio.run(scenario()) == 2


def test_a_key_that_raises_comes_back_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> list[Key]:
        clock, seen = Clock(), []

        async def reconcile(key: Key) -> float | None:
            seen.append(key)
            if key == A and seen.count(A) == 1:
                raise OperatorError("the API server is away")
            return None

        queue = WorkQueue(reconcile, schedule(), clock=clock)
        work = asyncio.create_task(queue.run())
        queue.add(A)
        clock.now = 1
        queue.add(B)
        await turn(lambda: seen == [A])
        clock.now = 10
        queue.add(B)
        await turn(lambda: sorted(seen) == [A, A, B])
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        return seen

    asyncio.run(scenario())
    assert "reconcile of team/a failed, again in 2.0 s: the API server is away" in caplog.text
    assert "Traceback" not in caplog.text


def test_a_key_that_is_told_to_come_back_later_does_not_come_earlier() -> None:
    queue = schedule()
    queue.add(A, 0)
    queue.take(1)
    assert queue.failed(A, 1, at_least_seconds=30) == 30
    queue.add(A, 2)
    assert queue.next_due() == 31


def test_a_busy_api_server_says_when_to_come_back(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        clock = Clock()

        async def reconcile(_: Key) -> float | None:
            raise error_of("GET", "/api", 429, b"{}", retry_after="17")

        queue = WorkQueue(reconcile, schedule(), clock=clock)
        work = asyncio.create_task(queue.run())
        queue.add(A)
        clock.now = 1
        queue.add(B)
        await turn(lambda: "again in 17.0 s" in caplog.text)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("sent", "seconds"), [(None, 0), ("5", 5), ("Wed, 21 Oct 2026 07:28:00 GMT", 0), ("99999", 300)]
)
def test_only_seconds_count_as_a_time_to_come_back_and_not_for_ever(sent: str | None, seconds: float) -> None:
    assert error_of("GET", "/api", 429, b"{}", sent).retry_after_seconds == seconds


def test_stopping_waits_for_the_run_that_has_started() -> None:
    async def scenario() -> bool:
        clock, gate, finished = Clock(), asyncio.Event(), False

        async def reconcile(_: Key) -> float | None:
            nonlocal finished
            await gate.wait()
            finished = True
            return None

        queue = WorkQueue(reconcile, schedule(), clock=clock)
        work = asyncio.create_task(queue.run())
        queue.add(A)
        clock.now = 1
        queue.add(B)
        await turn(lambda: queue.depth >= 1 and not gate.is_set())
        await asyncio.sleep(0)
        work.cancel()
        gate.set()
        await asyncio.gather(work, return_exceptions=True)
        return finished

    assert asyncio.run(scenario())
