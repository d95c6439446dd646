"""kopf, and nothing else of ours knows it: it watches, and every event becomes a key in the work queue.

No handler decides or writes anything, so kopf puts neither annotations nor finalizers on users' objects. It runs in a
thread and event loop of its own: in a shared loop its shutdown would wait for, and then cancel, every task it did not
start.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import kopf

from tidegate_operator.kube import Connection
from tidegate_operator.manifests.labels import POOL_LABEL
from tidegate_operator.resources import CHILDREN, POD, POOL, Resource
from tidegate_operator.schedule import Key

LOGIN_SECONDS = 600  # then credentials are read again: ServiceAccount tokens rotate
STOP_SECONDS = 10
ERROR_BACKOFFS_SECONDS = (
    1,
    1,
    2,
    3,
    5,
    *(10,) * 360,
)  # an hour of outage, or of a namespace that is gone; then restart

_log = logging.getLogger(__name__)


class Watcher:
    """kopf in its thread. `enqueue` is called there; `on_end` when it ended without being asked to."""

    def __init__(
        self,
        connection: Callable[[], Connection],
        enqueue: Callable[[Key], None],
        namespaces: tuple[str, ...],
        on_end: Callable[[], None],
    ) -> None:
        self._registry = build_registry(connection, enqueue, self._on_cleanup)
        self._namespaces = namespaces
        self._on_end = on_end
        self._stop = threading.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kopf", daemon=True)

    def start(self) -> None:
        """Once; later calls do nothing."""
        if self._thread.ident is None:
            self._thread.start()

    def stop(self) -> None:
        """Also where it never started: the CRD may not have come."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS)

    @property
    def is_ready(self) -> bool:
        """Everything there was has been listed and is watched."""
        return self._ready.is_set() and self._thread.is_alive()

    def _run(self) -> None:
        try:
            asyncio.run(
                kopf.operator(
                    registry=self._registry,
                    settings=watch_settings(),
                    standalone=True,
                    clusterwide=not self._namespaces,
                    namespaces=self._namespaces,
                    stop_flag=self._stop,
                    ready_flag=self._ready,
                )
            )
        except Exception:  # noqa: BLE001 - the top of a thread: log it, then end the process
            _log.exception("the watches ended")
        self._on_cleanup()

    def _on_cleanup(self) -> None:
        if not self._stop.is_set():
            self._on_end()


def build_registry(
    connection: Callable[[], Connection], enqueue: Callable[[Key], None], on_cleanup: Callable[[], None]
) -> kopf.OperatorRegistry:
    """All handlers: pools by their own name, everything else by the label that names its pool.

    `on_cleanup` when kopf begins to end: after one watch failed for good it waits for the others, which try again for
    ever with a session that is closed, so that it never returns.
    """
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    def login(**_: Any) -> kopf.ConnectionInfo:  # kopf's keyword arguments
        now = connection()
        return kopf.ConnectionInfo(
            server=now.server,
            token=now.token,
            ca_path=now.ca_file,
            certificate_path=now.certificate_file,
            private_key_path=now.key_file,
            expiration=datetime.now(UTC) + timedelta(seconds=LOGIN_SECONDS),
        )

    @kopf.on.cleanup(registry=registry)
    async def cleanup(**_: Any) -> None:  # kopf's keyword arguments
        on_cleanup()

    async def on_pool(*, namespace: str | None, name: str, **_: Any) -> None:  # kopf's keyword arguments
        enqueue((namespace or "", name))

    async def on_child(*, namespace: str | None, labels: Mapping[str, str], **_: Any) -> None:  # kopf's arguments
        if pool := labels[POOL_LABEL]:  # anybody can write an empty one
            enqueue((namespace or "", pool))

    kopf.on.event(*_selector(POOL), registry=registry)(on_pool)
    for resource in (*CHILDREN, POD):
        is_ours = {POOL_LABEL: kopf.PRESENT}
        kopf.on.event(*_selector(resource), id=f"on_{resource.kind}", labels=is_ours, registry=registry)(on_child)
    return registry


def watch_settings() -> kopf.OperatorSettings:
    """Few requests, no Events of kopf's own, and no watch that dies silently."""
    settings = kopf.OperatorSettings()
    settings.scanning.disabled = True  # our kinds and namespaces are known: no list of CRDs and namespaces
    settings.posting.enabled = False
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 330
    settings.watching.connect_timeout = 10
    settings.watching.chunk_size = 500
    settings.networking.request_timeout = 30
    settings.networking.error_backoffs = ERROR_BACKOFFS_SECONDS
    for resource in (*CHILDREN, POD):
        settings.watching.label_selectors[_selector(resource)] = POOL_LABEL  # filtered by the server
    return settings


def _selector(resource: Resource) -> tuple[str, str, str]:
    return resource.group, resource.version, resource.plural
