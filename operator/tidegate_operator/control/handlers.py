"""kopf, and nothing else of ours knows it: it watches, and every event goes to the lookout.

No handler decides or writes anything, so kopf puts neither annotations nor finalizers on users' objects. It runs in a
thread and event loop of its own: in a shared loop its shutdown would wait for, and then cancel, every task it did not
start.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import kopf

from tidegate_operator.kube import PAGE_SIZE, Connection
from tidegate_operator.labels import POOL_LABEL
from tidegate_operator.resources import CHILDREN, POD, POOL, Manifest, Resource

LOGIN_SECONDS = 600  # then credentials are read again: ServiceAccount tokens rotate
STOP_SECONDS = 10
IDLE_WORKER_SECONDS = 0.1  # kopf's worker of an object keeps the whole last event, and a list has one for every object
ERROR_BACKOFFS_SECONDS = (
    1,
    1,
    2,
    3,
    5,
    *(10,) * 360,
)  # an hour of outage, or of a namespace that is gone; then restart

Tell = Callable[[Resource, str | None, Manifest], None]  # kind of the object, of the event (None: listed), the object
_log = logging.getLogger(__name__)


class Watcher:
    """kopf in its thread. `tell` is called there; `on_end` when it ended without being asked to."""

    def __init__(
        self,
        connection: Callable[[], Connection],
        tell: Tell,
        namespaces: tuple[str, ...],
        on_end: Callable[[], None],
    ) -> None:
        self._registry = build_registry(connection, tell, self._on_cleanup)
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
    connection: Callable[[], Connection], tell: Tell, on_cleanup: Callable[[], None]
) -> kopf.OperatorRegistry:
    """All handlers: pools, and everything else that carries the label that names its pool.

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

    for resource in (POOL, *CHILDREN, POD):
        kopf.on.event(*_selector(resource), id=f"on_{resource.kind}", registry=registry)(_teller(resource, tell))
    return registry


def _teller(resource: Resource, tell: Tell) -> Callable[..., Coroutine[Any, Any, None]]:
    kind = {"apiVersion": resource.api_version, "kind": resource.kind}  # items of a list come without it

    async def on_event(*, event: Mapping[str, Any], **_: Any) -> None:  # kopf's keyword arguments
        tell(resource, event["type"], {**kind, **event["object"]})

    return on_event


def watch_settings() -> kopf.OperatorSettings:
    """Few requests, little memory, no Events of kopf's own, and no watch that dies silently."""
    settings = kopf.OperatorSettings()
    settings.scanning.disabled = True  # our kinds and namespaces are known: no list of CRDs and namespaces
    settings.posting.enabled = False
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 330
    settings.watching.connect_timeout = 10
    settings.watching.chunk_size = PAGE_SIZE
    settings.queueing.idle_timeout = IDLE_WORKER_SECONDS
    settings.networking.request_timeout = 30
    settings.networking.error_backoffs = ERROR_BACKOFFS_SECONDS
    for resource in (*CHILDREN, POD):
        settings.watching.label_selectors[_selector(resource)] = POOL_LABEL  # filtered by the server
    return settings


def _selector(resource: Resource) -> tuple[str, str, str]:
    return resource.group, resource.version, resource.plural
