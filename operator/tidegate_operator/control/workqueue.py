"""The work queue: workers run `reconcile(key)` for the keys that schedule.py says are due.

handlers.py adds keys on events, __main__.py runs it. A run that raises is logged and comes back after a backoff; what
it raised goes no further, so that one broken pool never stops the others.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from tidegate_operator.control.schedule import Schedule
from tidegate_operator.errors import KubeError, OperatorError
from tidegate_operator.resources import Key

Reconcile = Callable[[Key], Awaitable[float | None]]  # seconds until the key wants to run again; None: it is gone

_log = logging.getLogger(__name__)


class QueueWatcher:
    """Is told what the queue does; this one counts nothing, metrics.py does."""

    def on_add(self) -> None:
        """A key was added, or added again."""

    def on_take(self, waited_seconds: float) -> None:
        """A key that was due for so long has got a worker."""

    def on_run(self, seconds: float, is_success: bool) -> None:
        """A run has ended; one without success comes back."""


class WorkQueue:
    """Use it from one event loop; other threads go through `loop.call_soon_threadsafe(queue.add, key)`."""

    def __init__(
        self,
        reconcile: Reconcile,
        schedule: Schedule,
        *,
        num_workers: int = 4,
        clock: Callable[[], float] = time.monotonic,
        watcher: QueueWatcher | None = None,
    ) -> None:
        self._reconcile = reconcile
        self._schedule = schedule
        self._num_workers = num_workers
        self._clock = clock
        self._watcher = watcher or QueueWatcher()
        self._wake = asyncio.Event()

    def add(self, key: Key) -> None:
        """Run this key soon."""
        self._watcher.on_add()
        self._schedule.add(key, self._clock())
        self._wake.set()

    @property
    def depth(self) -> int:
        """Keys that run or wait for a worker."""
        return self._schedule.num_due(self._clock())

    async def run(self) -> None:
        """Work until cancelled; runs that have started are finished first."""
        free_workers = asyncio.Semaphore(self._num_workers)
        runs: set[asyncio.Task[None]] = set()
        try:
            while True:
                await free_workers.acquire()
                key = await self._take()
                run = asyncio.create_task(self._run_one(key), name=f"reconcile {key[0]}/{key[1]}")
                runs.add(run)
                run.add_done_callback(runs.discard)
                run.add_done_callback(lambda _: free_workers.release())
        finally:
            await asyncio.gather(*runs)

    async def _take(self) -> Key:
        while True:
            due, now = self._schedule.next_due(), self._clock()
            if due is not None and (key := self._schedule.take(now)) is not None:
                self._watcher.on_take(now - due)
                return key
            self._wake.clear()
            try:
                async with asyncio.timeout(None if due is None else max(0.0, due - self._clock())):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _run_one(self, key: Key) -> None:
        started = self._clock()
        try:
            after_seconds = await self._reconcile(key)
        except Exception as error:  # noqa: BLE001 - the border: whatever it was, the key comes back later
            self._watcher.on_run(self._clock() - started, is_success=False)
            asked_seconds = error.retry_after_seconds if isinstance(error, KubeError) else 0.0
            retry_seconds = self._schedule.failed(key, self._clock(), asked_seconds)
            trace = None if isinstance(error, OperatorError) else error  # ours say what happened; others are bugs
            _log.warning("reconcile of %s/%s failed, again in %.1f s: %s", *key, retry_seconds, error, exc_info=trace)
        else:
            self._watcher.on_run(self._clock() - started, is_success=True)
            self._schedule.succeeded(key, self._clock(), after_seconds)
        self._wake.set()
