"""What the scaler is told of a pool beside its loads."""

import pytest

from tidegate_operator.api.status import ColdStartPhases, ColdStartStatus
from tidegate_operator.decisions.scale import DEFAULT_COLD_START_SECONDS, MAX_COLD_START_SECONDS, cold_start_seconds

PHASES = ColdStartPhases(schedule_seconds=0, image_seconds=0, download_seconds=0, load_seconds=0, warm_up_seconds=0)


def test_without_a_measured_start_replicas_are_ordered_a_minute_ahead() -> None:
    assert cold_start_seconds(None) == DEFAULT_COLD_START_SECONDS


@pytest.mark.parametrize(("p90", "seconds"), [(90, 90.0), (0, 1.0), (7200, MAX_COLD_START_SECONDS)])
def test_replicas_are_ordered_as_far_ahead_as_new_ones_took_within_reason(p90: int, seconds: float) -> None:
    assert cold_start_seconds(ColdStartStatus(p90_seconds=p90, phases=PHASES)) == seconds
