"""Reversible drains: who goes, when the Deployment shrinks, and what is taken back."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pools import NOW, load, pod
from tidegate_core.telemetry import LoadReport
from tidegate_operator.decisions.scaledown import DRAINED_COST, DRAINING_COST, ScaleDown, plan_scale_down
from tidegate_operator.world.observed import Pod

TIMEOUT_SECONDS = 120.0


def down(
    pods: tuple[Pod, ...],
    loads: Mapping[str, LoadReport],
    desired: int,
    *,
    replicas: int | None = None,
    is_rolling_out: bool = False,
    seconds: float = 0,
) -> ScaleDown:
    return plan_scale_down(
        num_replicas=len(pods) if replicas is None else replicas,
        num_desired=desired,
        pods=pods,
        loads=loads,
        num_rolling=max(len(pods), desired) if is_rolling_out else None,
        drain_timeout_seconds=TIMEOUT_SECONDS,
        now=NOW + timedelta(seconds=seconds),
    )


def draining(name: str, **facts: object) -> Pod:
    return pod(name, draining_since=NOW, is_serving=False, ready_since=None, deletion_cost=DRAINING_COST, **facts)


def marked(steps: ScaleDown) -> list[str]:
    return [mark.pod.name for mark in steps.marks if mark.draining_since]


def test_nothing_happens_at_the_size_that_is_wanted() -> None:
    assert down((pod("a"), pod("b")), {}, 2) == ScaleDown(2)


def test_growing_takes_effect_at_once() -> None:
    assert down((pod("a"),), {}, 3).num_replicas == 3


def test_the_least_loaded_is_marked_and_told_to_drain_and_the_deployment_waits() -> None:
    steps = down((pod("a"), pod("b")), {"a": load(running=2), "b": load(running=1)}, 1)
    assert marked(steps) == ["b"]
    assert [each.name for each in steps.drain] == ["b"]
    assert steps.num_replicas == 2
    assert steps.requeue_after_seconds is not None


@pytest.mark.parametrize(
    ("loads", "victim"),
    [
        ({"a": load(running=1, waiting=5), "b": load(running=4)}, "b"),
        ({"a": load(running=3)}, "a"),
    ],
    ids=["waiting counts", "silence counts as busy"],
)
def test_in_flight_requests_choose_the_victim(loads: Mapping[str, LoadReport], victim: str) -> None:
    assert marked(down((pod("a"), pod("b")), loads, 1)) == [victim]


@pytest.mark.parametrize(
    ("loads", "victim"),
    [
        ({"a": load(kv_blocks_cached=10, prefix_hit_share=0.5), "b": load(kv_blocks_cached=90)}, "b"),
        (
            {"a": load(kv_blocks_cached=10, prefix_hit_share=0.5), "b": load(kv_blocks_cached=9, prefix_hit_share=0.9)},
            "a",
        ),
        ({"a": load(running=1), "b": load(kv_blocks_cached=400, prefix_hit_share=0.9)}, "b"),
    ],
    ids=["a full cache that helps nobody", "a smaller one that helps more", "requests come before caches"],
)
def test_of_idle_replicas_the_one_whose_prefix_cache_helps_least_goes(
    loads: Mapping[str, LoadReport], victim: str
) -> None:
    assert marked(down((pod("a"), pod("b")), loads, 1)) == [victim]


def test_a_pending_pod_goes_first_and_at_once() -> None:
    steps = down((pod("a"), pod("b", ready_since=None, is_running=False)), {"a": load()}, 1)
    assert marked(steps) == ["b"]
    assert steps.marks[0].deletion_cost == DRAINED_COST
    assert not steps.drain
    assert steps.num_replicas == 1


def test_a_pod_that_is_unready_but_has_requests_is_drained_like_any_other() -> None:
    steps = down((pod("a"), pod("b", ready_since=None)), {"a": load(running=9), "b": load(running=1)}, 1)
    assert marked(steps) == ["b"]
    assert steps.num_replicas == 2


@pytest.mark.parametrize(
    ("report", "seconds", "leaves"),
    [
        pytest.param(load(draining=True), 1, True, id="empty"),
        pytest.param(load(draining=True, running=1), 1, False, id="running"),
        pytest.param(load(draining=True, waiting=1), 1, False, id="waiting"),
        pytest.param(load(draining=False), 1, False, id="not draining yet: a request may be on its way"),
        pytest.param(None, 1, False, id="no answer"),
        pytest.param(load(draining=True, running=1), TIMEOUT_SECONDS, True, id="timeout"),
        pytest.param(None, TIMEOUT_SECONDS, True, id="no answer until the timeout"),
    ],
)
def test_a_drained_pod_leaves(report: LoadReport | None, seconds: float, leaves: bool) -> None:
    loads = {"a": load(running=1)} | ({"b": report} if report else {})
    steps = down((pod("a"), draining("b")), loads, 1, seconds=seconds)
    assert steps.num_replicas == (1 if leaves else 2)
    assert [mark.deletion_cost for mark in steps.marks] == ([DRAINED_COST] if leaves else [])


def test_a_pod_that_the_shrunk_deployment_has_not_removed_yet_is_not_spared() -> None:
    steps = down((pod("a"), draining("b")), {"b": load(draining=True)}, 1, replicas=1)
    assert steps.num_replicas == 1
    assert not steps.spared
    assert not steps.undrain


def test_replicas_that_were_never_created_need_no_victim() -> None:
    steps = down((pod("a"),), {"a": load(running=1)}, 1, replicas=3)
    assert steps.num_replicas == 1
    assert not steps.marks


def test_load_that_comes_back_spares_the_busiest_draining_pod() -> None:
    pods = (pod("a"), draining("b"), draining("c"))
    steps = down(pods, {"b": load(draining=True, running=1), "c": load(draining=True, running=5)}, 2)
    assert [each.name for each in steps.spared] == ["c"]
    assert [each.name for each in steps.undrain] == ["c"]
    assert steps.num_replicas == 3


def test_an_engine_that_restarted_while_draining_is_told_again() -> None:
    steps = down((pod("a"), draining("b")), {"b": load(draining=False, running=1)}, 1)
    assert [each.name for each in steps.drain] == ["b"]
    assert not marked(steps)


def test_an_engine_that_drains_without_a_mark_is_told_to_go_on() -> None:
    steps = down((pod("a"), pod("b")), {"b": load(draining=True)}, 2)
    assert [each.name for each in steps.undrain] == ["b"]


def test_nothing_leaves_during_a_rollout() -> None:
    pods = (pod("a"), draining("b"))
    steps = down(pods, {"a": load(), "b": load(draining=True)}, 1, is_rolling_out=True)
    assert steps.num_replicas == 2
    assert not steps.marks


def test_pods_that_already_terminate_do_not_count() -> None:
    steps = down((pod("a"), pod("b", is_terminating=True)), {}, 1, replicas=1)
    assert steps == ScaleDown(1)


PODS = st.lists(
    st.builds(
        lambda ready, started, since: (ready, started, since),
        st.booleans(), st.booleans(), st.none() | st.integers(0, 200),
    ),
    max_size=6,
)  # fmt: skip
LOADS = st.none() | st.builds(
    lambda running, is_draining: load(running=running, draining=is_draining), st.integers(0, 3), st.booleans()
)


@given(pods=PODS, reports=st.lists(LOADS, min_size=6, max_size=6), desired=st.integers(1, 6), surplus=st.integers(0, 3))
def test_whatever_is_seen_no_request_is_cut_before_its_timeout_and_never_more_go_than_should(
    pods: list[tuple[bool, bool, int | None]], reports: list[LoadReport | None], desired: int, surplus: int
) -> None:
    made = tuple(
        replace(
            pod(f"p{index}"),
            ready_since=NOW if ready and since is None else None,
            is_running=started or ready,
            draining_since=None if since is None else NOW - timedelta(seconds=since),
            is_serving=since is None,
        )
        for index, (ready, started, since) in enumerate(pods)
    )
    loads = {each.name: report for each, report in zip(made, reports, strict=False) if report and each.is_running}
    steps = down(made, loads, desired, replicas=len(made) + surplus)
    assert steps.num_replicas >= desired
    leaving = {mark.pod.name for mark in steps.marks if mark.deletion_cost == DRAINED_COST}
    leaving |= {each.name for each in made if each.deletion_cost == DRAINED_COST}
    for each in made:
        report = loads.get(each.name)
        has_requests = report is not None and report.running + report.waiting > 0
        is_late = each.draining_since is not None and NOW - each.draining_since >= timedelta(seconds=TIMEOUT_SECONDS)
        assert not (each.name in leaving and has_requests and not is_late)
    assert len(made) - len(leaving) <= max(steps.num_replicas, desired)
    assert not {mark.pod.name for mark in steps.marks if mark.draining_since} & {each.name for each in steps.undrain}
