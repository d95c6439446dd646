"""All pods of pools on an API server, kept by one watch: kubelets' stand-ins look here as often as they like.

Asking the API server twenty times a second instead keeps a small machine busy with nothing else.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from e2e.cluster.errors import ApiRefused
from e2e.cluster.requests import Json, Requests
from tidegate_operator.labels import POOL_LABEL

WATCH_SECONDS = "30"
PODS = "/api/v1/pods"


class PodWatch:
    """As the API server had them milliseconds ago."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._pods: dict[tuple[str, str], Json] = {}
        self._stop = threading.Event()

    def of(self, namespace: str) -> list[Json]:
        return [pod for (there, _), pod in list(self._pods.items()) if there == namespace]

    def run(self) -> None:
        try:
            while not self._stop.is_set():
                self._follow()
        except ApiRefused:
            if not self._stop.is_set():  # it ends with its API server
                raise

    def stop(self) -> None:
        self._stop.set()

    def _follow(self) -> None:
        listed = self._requests.get(PODS, labelSelector=POOL_LABEL)
        self._pods = {_key(pod): pod for pod in listed["items"]}
        version = listed["metadata"]["resourceVersion"]
        query = {"labelSelector": POOL_LABEL, "resourceVersion": version, "timeoutSeconds": WATCH_SECONDS}
        for event in self._requests.watch(PODS, **query):
            if event["type"] == "ERROR":  # too far behind: list again
                return
            if event["type"] == "DELETED":
                self._pods.pop(_key(event["object"]), None)
            else:
                self._pods[_key(event["object"])] = event["object"]


def _key(pod: Json) -> tuple[str, str]:
    return pod["metadata"]["namespace"], pod["metadata"]["name"]


@contextmanager
def pod_watch(requests: Requests) -> Iterator[PodWatch]:
    """Not waited for at the end: it blocks until the server ends the watch."""
    watch = PodWatch(requests)
    threading.Thread(target=watch.run, name="pod watch", daemon=True).start()
    try:
        yield watch
    finally:
        watch.stop()
