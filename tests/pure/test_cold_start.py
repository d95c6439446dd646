"""Cold starts: each pod is measured once, phase by phase, and what is known survives restarts and drains."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from pools import NOW, load, pod
from tidegate_core.telemetry import StartReport
from tidegate_operator.api.status import ColdStartStatus
from tidegate_operator.world.cold_start import MAX_MEASURED, measure, newly_measured
from tidegate_operator.world.observed import Observed, Pod
from tidegate_operator.world.readers import read_pod
from tidegate_operator.world.timeline import Timeline, read_timeline

STATUS: dict[str, Any] = {
    "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-11-29T12:00:04Z"}],
    "initContainerStatuses": [
        {"state": {"terminated": {
            "exitCode": 0, "startedAt": "2026-11-29T12:00:10Z", "finishedAt": "2026-11-29T12:01:10Z",
        }}},
        {"state": {"running": {"startedAt": "2026-11-29T12:01:10Z"}}},
    ],
    "containerStatuses": [
        {"name": "engine", "restartCount": 0, "state": {"running": {"startedAt": "2026-11-29T12:01:12Z"}}},
    ],
}  # fmt: skip


def started(name: str, *, minutes: float = 0, load_seconds: float = 20, **facts: Any) -> tuple[Pod, StartReport]:
    """Created so many minutes after noon, scheduled after 2 s, running after 12 s."""
    created = NOW + timedelta(minutes=minutes)
    usual = {
        "created_at": created, "scheduled_at": created + timedelta(seconds=2),
        "timeline": Timeline(created + timedelta(seconds=12)), "template": "t1",
    }  # fmt: skip
    return pod(name, **{**usual, **facts}), StartReport(load_seconds=load_seconds, warm_up_seconds=3)


def world(*starts: tuple[Pod, StartReport]) -> Observed:
    loads = {each.name: load(start=start) for each, start in starts}
    return Observed(pods=tuple(each for each, _ in starts), loads=loads)


def measured(*starts: tuple[Pod, StartReport], before: ColdStartStatus | None = None) -> ColdStartStatus:
    found = measure(before, world(*starts))
    assert found is not None
    return found


def test_containers_that_ran_before_the_engine_are_the_download_and_sidecars_are_not() -> None:
    times = read_timeline(STATUS)
    assert times.init_seconds == 60
    assert times.started_at is not None
    assert times.started_at.isoformat() == "2026-11-29T12:01:12+00:00"
    metadata = {"name": "a", "uid": "u", "creationTimestamp": "2026-11-29T12:00:00Z"}
    read = read_pod({"metadata": metadata, "spec": {"nodeName": "n1"}, "status": STATUS})
    assert (read.node, read.timeline) == ("n1", times)


def test_phases_add_up_to_the_whole_way_from_creation_to_serving() -> None:
    start, report = started("a")
    started_at = start.created_at + timedelta(seconds=72)
    found = measured((replace(start, timeline=Timeline(started_at, init_seconds=60)), report))
    phases = found.phases
    assert (phases.schedule_seconds, phases.image_seconds, phases.download_seconds) == (2, 10, 60)
    assert (phases.load_seconds, phases.warm_up_seconds) == (20, 3)
    assert found.p90_seconds == 95
    assert [each.pod for each in found.measured] == ["a"]


def test_nothing_is_measured_before_it_serves_and_the_same_world_changes_nothing() -> None:
    start, report = started("a")
    assert measure(None, world((replace(start, ready_since=None), report))) is None
    assert measure(None, Observed(pods=(start,))) is None, "no report yet"
    silent = Observed(pods=(start,), loads={"a": load(start=None)})
    assert measure(None, silent) is None, "an engine that does not measure"
    first = measured((start, report))
    assert measure(first, world((start, report))) is first
    assert measure(first, Observed()) is first, "kept when the pod is gone"


def test_a_pod_that_was_restarted_is_not_measured_and_one_that_drained_and_came_back_not_again() -> None:
    start, report = started("a")
    assert measure(None, world((replace(start, num_restarts=1), report))) is None
    first = measured((start, report))
    assert measure(first, world((replace(start, ready_since=NOW + timedelta(hours=9)), report))) is first


def test_the_90th_percentile_is_of_the_last_ten_pods_created() -> None:
    all_starts = [started(f"p{each}", minutes=each, load_seconds=each) for each in range(12)]
    found = measured(*all_starts)
    assert len(found.measured) == MAX_MEASURED
    assert [each.pod for each in found.measured][:2] == ["p11", "p10"]
    assert found.phases.load_seconds == 10
    assert found.p90_seconds == 12 + 10 + 3
    assert measure(found, world(*all_starts)) is found, "those that fell out do not come back"


def test_an_older_template_tells_nothing_once_a_newer_one_serves() -> None:
    old = measured(started("old", load_seconds=300))
    new = measured(started("old", load_seconds=300), started("new", minutes=5, template="t2"), before=old)
    assert [each.pod for each in new.measured] == ["new"]
    assert [each.pod for each in newly_measured(old, new)] == ["new"]
    assert newly_measured(new, new) == ()


def test_clocks_of_nodes_that_differ_make_no_negative_phase() -> None:
    start, report = started("a")
    early = measured((replace(start, scheduled_at=start.created_at - timedelta(seconds=3)), report))
    assert early.phases.schedule_seconds == 0


def test_a_start_longer_than_any_status_can_say_is_no_report() -> None:
    with pytest.raises(ValidationError):
        StartReport(load_seconds=1e300, warm_up_seconds=0)
