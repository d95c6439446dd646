"""A stand-in for kubelets where there are no nodes: it runs no container, but says of each pod what a kubelet would.

Engine pods get a fake engine's address and become ready; inspection pods end with the answer a test asks for. Pods
stay unscheduled, so that the API server removes a deleted one at once.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from e2e.cluster.errors import ApiRefused
from e2e.cluster.requests import Json, Requests
from fake_engines import FakeEngines
from pod_watch import PodWatch
from tidegate_operator.labels import DOWNLOAD_ROLE, INSPECTION_ROLE, ROLE_LABEL

POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Ending:
    """How an inspection container ends."""

    exit_code: int
    message: str


@dataclass
class Kubelet:
    """`ending` None: inspections run for ever. `starts_engines` False: engine pods stay pending."""

    namespace: str
    requests: Requests
    pods: PodWatch
    engines: FakeEngines
    ending: Ending | None = None
    starts_engines: bool = True
    becomes_ready: bool = True
    engine_ending: Ending | None = None  # new engine pods end so again and again
    download_ending: Ending = Ending(0, "")
    _written: dict[str, int] = field(default_factory=dict)  # resourceVersions: what is older is from before our words
    _stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        while not self._stop.wait(POLL_SECONDS):
            for pod in self.pods.of(self.namespace):
                metadata = pod["metadata"]
                if int(metadata["resourceVersion"]) >= self._written.get(metadata["name"], 0):
                    self._tend(pod)

    def stop(self) -> None:
        self._stop.set()

    def _tend(self, pod: dict[str, Any]) -> None:
        name, labels = pod["metadata"]["name"], pod["metadata"]["labels"]
        status = pod["status"]
        if labels[ROLE_LABEL] == INSPECTION_ROLE:
            if self.ending and status["phase"] == "Pending":
                self._write(name, _ended(self.ending))
        elif labels[ROLE_LABEL] == DOWNLOAD_ROLE:
            if status["phase"] == "Pending":
                self._write(name, _ended(self.download_ending))
        elif status["phase"] == "Pending" and self.engine_ending:
            self._write(name, _crashing(self.engine_ending))
        elif status["phase"] == "Pending" and self.starts_engines:
            self._write(name, _running(self.engines.start(name).ip, is_ready=False))
        elif status["phase"] == "Running" and name in self.engines.by_pod:
            engine = self.engines.by_pod[name]
            is_ready = self.becomes_ready and engine.is_ready and not engine.report.draining
            if is_ready != _is_ready(status):
                self._write(name, _running(engine.ip, is_ready=is_ready))

    def _write(self, name: str, status: dict[str, Any]) -> None:
        try:
            pod = self.write_status(name, status)
        except ApiRefused as error:
            if error.status not in (404, 409):  # gone, or changed meanwhile
                raise
        else:
            self._written[name] = int(pod["metadata"]["resourceVersion"])

    def write_status(self, name: str, status: dict[str, Any]) -> Json:
        """What a test wants to be said of a pod."""
        return self.requests.patch(f"/api/v1/namespaces/{self.namespace}/pods/{name}/status", {"status": status})


@contextmanager
def kubelet(
    requests: Requests, pods: PodWatch, namespace: str, engines: FakeEngines, ending: Ending | None
) -> Iterator[Kubelet]:
    stand_in = Kubelet(namespace, requests, pods, engines, ending)
    thread = threading.Thread(target=stand_in.run, name="kubelet", daemon=True)
    thread.start()
    try:
        yield stand_in
    finally:
        stand_in.stop()
        thread.join(10)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _is_ready(status: dict[str, Any]) -> bool:
    conditions = status.get("conditions") or []
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _running(ip: str, *, is_ready: bool) -> dict[str, Any]:
    ready = "True" if is_ready else "False"
    return {
        "phase": "Running",
        "podIP": ip,
        "podIPs": [{"ip": ip}],
        "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": _now()}],
        "containerStatuses": [{
            "name": "engine", "image": "engine", "imageID": "", "ready": is_ready, "restartCount": 0, "started": True,
            "state": {"running": {"startedAt": _now()}},
        }],
    }  # fmt: skip


def _crashing(ending: Ending) -> dict[str, Any]:
    last = {"exitCode": ending.exit_code, "message": ending.message, "reason": "Error"}
    return {
        "phase": "Running",
        "containerStatuses": [{
            "name": "engine", "image": "engine", "imageID": "", "ready": False, "restartCount": 3, "started": False,
            "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": last},
        }],
    }  # fmt: skip


def _ended(ending: Ending) -> dict[str, Any]:
    ended = {
        "exitCode": ending.exit_code, "message": ending.message, "finishedAt": _now(), "startedAt": _now(),
        "reason": "Completed" if ending.exit_code == 0 else "Error",
    }  # fmt: skip
    return {
        "phase": "Succeeded" if ending.exit_code == 0 else "Failed",
        "containerStatuses": [{
            "name": "engine", "image": "engine", "imageID": "", "ready": False, "restartCount": 0, "started": False,
            "state": {"terminated": ended},
        }],
    }  # fmt: skip
