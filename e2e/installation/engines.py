"""Engine pods as a scenario sees them: where they stand in the pool's life, and what they say of their load."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from math import inf
from typing import Any

import httpx

from tidegate_core.telemetry import ADMIN_PORT, LOAD_PATH, LoadReport


@dataclass(frozen=True)
class EnginePod:
    """One engine pod at the moment it was looked at."""

    name: str
    uid: str
    address: str
    is_serving: bool  # in the Service's selector
    is_running: bool
    is_ready: bool
    is_terminating: bool
    num_restarts: int
    ready_seconds: float  # from its creation; as long as it is not ready, endless

    @classmethod
    def of(cls, pod: Mapping[str, Any]) -> "EnginePod":
        metadata, status = pod["metadata"], pod["status"]
        containers = status.get("containerStatuses", [])
        return cls(
            name=metadata["name"],
            uid=metadata["uid"],
            address=status.get("podIP", ""),
            is_serving=metadata["labels"].get("tidegate.dev/serving") == "true",
            is_running=any("running" in container["state"] for container in containers),
            is_ready=any(container["ready"] for container in containers),
            is_terminating="deletionTimestamp" in metadata,
            num_restarts=sum(container["restartCount"] for container in containers),
            ready_seconds=_ready_seconds(metadata, status),
        )

    def load(self) -> LoadReport:
        answer = httpx.get(f"http://{self.address}:{ADMIN_PORT}{LOAD_PATH}", timeout=5, trust_env=False)
        return LoadReport.model_validate_json(answer.raise_for_status().content)


def _ready_seconds(metadata: Mapping[str, Any], status: Mapping[str, Any]) -> float:
    ready = [each for each in status.get("conditions", ()) if each["type"] == "Ready" and each["status"] == "True"]
    times = [datetime.fromisoformat(each["lastTransitionTime"]) for each in ready]
    return min(
        ((at - datetime.fromisoformat(metadata["creationTimestamp"])).total_seconds() for at in times), default=inf
    )
