"""When a pod's containers ran: read from its status, kept on observed.Pod, for cold_start.py. Pure.

created ─schedule─▶ on a node ─image─▶ engine runs ─load, warm-up─▶ serves
└─download─┘ (init containers, where there are any)
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from tidegate_operator.resources import Manifest
from tidegate_operator.world.containers import main_status


@dataclass(frozen=True)
class Timeline:
    """Of the containers that are there now; a pod that was restarted tells of its last start only."""

    started_at: datetime | None = None  # the engine's container; None: it does not run
    init_seconds: float = 0.0  # all init containers, one after the other


NO_TIMELINE = Timeline()


def read_timeline(status: Manifest) -> Timeline:
    """From the status of an engine pod."""
    started = main_status(status).get("state", {}).get("running", {}).get("startedAt")
    return Timeline(
        started_at=None if started is None else datetime.fromisoformat(started),
        init_seconds=_init_seconds(status.get("initContainerStatuses", ())),
    )


def _init_seconds(statuses: Iterable[Manifest]) -> float:
    """A sidecar never ends, so it does not count."""
    ended = [each["state"]["terminated"] for each in statuses if "terminated" in each.get("state", {})]
    spans = [(each.get("startedAt"), each.get("finishedAt")) for each in ended]
    return sum(
        (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()
        for start, end in spans
        if start and end
    )
