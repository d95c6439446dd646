"""What the scaler is told of a pool beside its loads."""

from datetime import timedelta
from typing import Any

import pytest

from pools import NOW, pod
from tidegate_operator.observed import Pod
from tidegate_operator.scale import DEFAULT_COLD_START_SECONDS, MAX_COLD_START_SECONDS, cold_start_seconds


def started(name: str, seconds: float, *, created_hours_ago: float = 2, **facts: Any) -> Pod:
    created_at = NOW - timedelta(hours=created_hours_ago)
    return pod(name, created_at=created_at, ready_since=created_at + timedelta(seconds=seconds), **facts)


@pytest.mark.parametrize(
    ("pods", "seconds"),
    [
        pytest.param((), DEFAULT_COLD_START_SECONDS, id="nobody"),
        pytest.param((pod(ready_since=None),), DEFAULT_COLD_START_SECONDS, id="nobody is ready"),
        pytest.param((started("a", 90),), 90, id="one"),
        pytest.param(tuple(started(f"p{each}", each) for each in range(10, 110, 10)), 90, id="the 90th percentile"),
        pytest.param((started("a", 0),), 1, id="a clock that went back"),
        pytest.param((started("a", 3600),), MAX_COLD_START_SECONDS, id="ready for a second time"),
        pytest.param(
            (started("old", 300, template="old"), started("new", 20, template="new", created_hours_ago=1)), 20,
            id="an older template tells nothing",
        ),
    ],
)  # fmt: skip
def test_a_cold_start_is_as_long_as_this_pools_own_pods_took(pods: tuple[Pod, ...], seconds: float) -> None:
    assert cold_start_seconds(pods) == seconds
