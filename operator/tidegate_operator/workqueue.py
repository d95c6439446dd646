"""The work queue: workers run `reconcile(key)` for the keys that schedule.py says are due.

handlers.py adds keys on events, __main__.py runs it. A run that raises is logged and comes back after a backoff; what
it raised goes no further, so that one broken pool never stops the others.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from tidegate_operator.errors import OperatorError
from tidegate_operator.schedule import Key, Schedule

Reconcile = Callable[[Key], Awaitable[float | None]]  # seconds until the key wants to run again; None: it is gone

_log = logging.getLogger(__name__)


class WorkQueue:
    """Use it from one event loop; other threads go through `loop.call_soon_threadsafe(queue.add, key)`."""

    def __init__(
        self,
        reconcile: Reconcile,
        schedule: Schedule,
        *,
        num_workers: int = 4,
        clock: Callable[[], float] = time.monotonic,
        on_run: Callable[[float, bool], None] = lambda _seconds, _is_success: None,
    ) -> None:
        self._reconcile = reconcile
        self._schedule = schedule
        self._num_workers = num_workers
        self._clock = clock
        self._on_run = on_run
        self._wake = asyncio.Event()

    def add(self, key: Key) -> None:
        """Run this key soon."""
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
        while (key := self._schedule.take(self._clock())) is None:
            self._wake.clear()
            due = self._schedule.next_due()
            try:
                async with asyncio.timeout(None if due is None else max(0.0, due - self._clock())):
                    await self._wake.wait()
            except TimeoutError:
                continue
        return key

    async def _run_one(self, key: Key) -> None:
        started = self._clock()
        try:
            after_seconds = await self._reconcile(key)
        except Exception as error:  # noqa: BLE001 - the border: whatever it was, the key comes back later
            self._on_run(self._clock() - started, False)
            retry_seconds = self._schedule.failed(key, self._clock())
            trace = None if isinstance(error, OperatorError) else error  # ours say what happened; others are bugs
            _log.warning("reconcile of %s/%s failed, again in %.1f s: %s", *key, retry_seconds, error, exc_info=trace)
        else:
            self._on_run(self._clock() - started, True)
            self._schedule.succeeded(key, self._clock(), after_seconds)
        self._wake.set()
