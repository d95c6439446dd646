"""Preemptions that persist with an empty queue: said after minutes, taken back after half an hour, with numbers."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

from pools import SETTINGS, load, pod, pool, pool_manifest, settled, stored
from tidegate_core.samples import Counters, History, Memory, Round, Sample
from tidegate_core.scaling import Policy, decide
from tidegate_core.squeeze import CALM_SECONDS, is_squeezed
from tidegate_operator.api.conditions import ConditionType
from tidegate_operator.api.status import InferencePoolStatus
from tidegate_operator.decisions.planning import plan
from tidegate_operator.report.status import status
from tidegate_operator.world.observed import Observed

NOW = 1_000_000.0
POLICY = Policy(min_replicas=1, max_replicas=1, slots=8, ttft_seconds=2.0, hold_seconds=120.0)


def looks(moments: dict[str, bool], waiting: int = 0) -> Iterator[tuple[float, Memory]]:
    """One replica, scraped every 10 s, over spans of seconds in which it preempts or does not."""
    history, time, preemptions = History(Memory(desired=1)), NOW, 0
    for span, preempts in moments.items():
        for _ in range(0, int(span.rpartition("#")[2]), 10):
            time += 10
            preemptions += preempts
            counters = Counters(arrivals=preemptions, preemptions=preemptions)
            sample = Sample("boot", counters, 4, waiting, 90, 100, 0.0)
            history = history.add(Round(time, frozenset({"a"}), {"a": sample}))
            history = history.remember(decide(history, POLICY, time).memory)
            yield time - NOW, history.memory


def said(moments: dict[str, bool], waiting: int = 0) -> list[float]:
    """The times at which what is said changes."""
    changes, before = [], False
    for time, memory in looks(moments, waiting):
        if is_squeezed(memory) is not before:
            changes.append(time)
            before = not before
    return changes


def test_preemptions_with_nobody_waiting_are_said_after_five_minutes() -> None:
    (begins,) = said({"600": True})
    assert 300 <= begins <= 320


def test_a_burst_is_not_said() -> None:
    assert said({"a#120": True, "b#600": False, "c#120": True, "d#600": False}) == []


def test_with_a_queue_they_ask_for_replicas_and_not_for_another_size() -> None:
    assert said({"1200": True}, waiting=3) == []


def test_what_is_said_stays_over_pauses_and_goes_after_half_an_hour_of_calm() -> None:
    begins, ends = said({"a#600": True, "b#1200": False, "c#60": True, "d#4000": False})
    assert 300 <= begins <= 320
    assert 600 + 1200 + 60 + CALM_SECONDS <= ends <= 600 + 1200 + 60 + CALM_SECONDS + 60


def squeezed_world() -> Observed:
    observed = settled()
    steps = plan(pool(), observed, SETTINGS, datetime.fromtimestamp(NOW, UTC))
    assert steps.revisions.current is not None
    memory = Memory(desired=1, squeezed_since=NOW - 400, squeezed_at=NOW - 10)
    return replace(
        observed,
        pods=(pod(template=steps.revisions.current.template_hash),),
        loads={"chat-a": load(running=4)},
        history=History(memory),
    )


def look(observed: Observed, before: InferencePoolStatus | None = None) -> InferencePoolStatus:
    now = datetime.fromtimestamp(NOW, UTC)
    subject = stored({**pool_manifest(), **({"status": before.to_wire()} if before else {})})
    return status(subject, observed, plan(subject, observed, SETTINGS, now), (), now)


def test_a_squeezed_pool_is_told_to_size_its_replicas_anew_with_what_each_way_gives() -> None:
    shown = look(squeezed_world()).condition(ConditionType.RESIZE_ADVISED)
    assert shown is not None
    assert (shown.status, shown.reason) == ("True", "PreemptionsPersist")
    assert "so more replicas would not help; set model.kvCacheDtype to Int8" in shown.message
    assert "raise traffic.promptTokens and traffic.outputTokens from 900 and 300" in shown.message
    assert look(replace(squeezed_world(), history=None)).condition(ConditionType.RESIZE_ADVISED) is None


def test_a_pool_of_a_size_that_others_decide_is_told_too() -> None:
    """Looked at once a minute, as a pool that does not scale is."""
    subject = stored(pool_manifest(scaling={"mode": "Manual"}))
    observed, said = replace(squeezed_world(), history=None), []
    for minute in range(8):
        now = datetime.fromtimestamp(NOW + 60 * minute, UTC)
        observed = replace(observed, loads={"chat-a": load(running=4, preemptions=minute)})
        steps = plan(subject, observed, SETTINGS, now)
        assert steps.size is not None
        assert steps.size.num_desired == 1
        observed = replace(observed, history=steps.size.history)
        said.append(bool(steps.advice))
        assert status(subject, observed, steps, (), now).scaler is None, "what is seen is written with no decision"
    assert said == [False] * 6 + [True] * 2


def test_a_restarted_operator_goes_on_saying_it() -> None:
    before = look(squeezed_world())
    assert look(replace(squeezed_world(), history=None), before) == before
