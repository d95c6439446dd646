"""Composition root of the operator: settings in, parts built and connected, run until SIGTERM.

kopf's thread: watches ──key──▶ work queue ──▶ Reconciler ──▶ API server, engines        (main thread, one loop)
"""

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from hashlib import sha256

import aiohttp

from tidegate_operator.errors import KubeError, NotFound
from tidegate_operator.events import EventRecorder
from tidegate_operator.handlers import Watcher
from tidegate_operator.kube import ApiServer
from tidegate_operator.manifests.pod import Runtime
from tidegate_operator.nodes import NodeCache
from tidegate_operator.plan import PlanSettings
from tidegate_operator.probes import Health, Metrics, serve_probes
from tidegate_operator.reconcile import Reconciler
from tidegate_operator.resources import POOL
from tidegate_operator.revisions import EngineDefaults
from tidegate_operator.scale import ScaleTiming
from tidegate_operator.schedule import Key, Schedule, Timing
from tidegate_operator.scrape import AdminPorts
from tidegate_operator.settings import BadSettings, OperatorSettings, read_settings
from tidegate_operator.workqueue import WorkQueue

CRD_POLL_SECONDS = 2.0
_log = logging.getLogger("tidegate_operator")


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 after SIGTERM, 1 when the watches broke (to be restarted), 2 for wrong settings."""
    parser = argparse.ArgumentParser(prog="tidegate operator", description="Serve InferencePools of a cluster.")
    parser.add_argument("--kubeconfig", help="absent: the pod's ServiceAccount")
    arguments = parser.parse_args(argv)
    try:
        settings = read_settings(os.environ)
        token = read_drain_token(settings)
    except BadSettings as error:
        print(f"tidegate operator: {error}", file=sys.stderr)  # noqa: T201 - logging is a setting, too
        return 2
    logging.basicConfig(level=settings.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("kopf").setLevel(logging.WARNING)  # it reports every event it passes on
    logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)  # that signals are ours is on purpose
    return asyncio.run(run(settings, ApiServer.connect(arguments.kubeconfig), token))


def read_drain_token(settings: OperatorSettings) -> str:
    """Raises BadSettings naming the file."""
    try:
        token = settings.drain_token_file.read_text().strip()
    except OSError as error:
        raise BadSettings(f"TIDEGATE_DRAIN_TOKEN_FILE: {error}; put a random token there") from error
    if not token:
        raise BadSettings(f"TIDEGATE_DRAIN_TOKEN_FILE: {settings.drain_token_file} is empty; put a random token there")
    return token


def plan_settings(settings: OperatorSettings, token: str) -> PlanSettings:
    """What plan.py needs of the settings."""
    engine = settings.engine
    return PlanSettings(
        engine=EngineDefaults(
            runtime=Runtime(engine.image, engine.pod_template_patch, engine.image_pull_policy),
            runner=engine.runner,
            drain_token_sha256=(sha256(token.encode()).hexdigest(),),
            sim_preemptions_per_minute=engine.sim_preemptions_per_minute,
        ),
        timing=ScaleTiming(settings.scrape.interval_seconds, settings.scrape.idle_interval_seconds),
    )


async def run(settings: OperatorSettings, kube: ApiServer, token: str) -> int:
    """Until a signal comes or the watches end."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stop.set)
    failed = asyncio.Event()

    def enqueue(key: Key) -> None:
        loop.call_soon_threadsafe(queue.add, key)

    def end() -> None:
        loop.call_soon_threadsafe(failed.set)

    async with aiohttp.ClientSession() as session:
        metrics = Metrics(depth=lambda: queue.depth)
        engines = AdminPorts(session, token=token, timeout_seconds=settings.scrape.timeout_seconds)
        queue = build_queue(settings, kube, engines, token, metrics)
        watcher = Watcher(kube.connection, enqueue, settings.namespaces, on_end=end)
        health = Health(is_alive=lambda: not failed.is_set(), is_ready=lambda: watcher.is_ready)
        probes = await serve_probes(settings.port, health, metrics)
        work = asyncio.create_task(queue.run(), name="work queue")
        look = asyncio.create_task(look_around(kube, settings, watcher, queue.add), name="look around")
        waits = [asyncio.create_task(event.wait()) for event in (stop, failed)]
        await asyncio.wait([look, work, *waits], return_when=asyncio.FIRST_COMPLETED)
        is_asked = stop.is_set()
        for task in (look, work, *waits):
            task.cancel()
        ends = await asyncio.gather(look, work, *waits, return_exceptions=True)
        await asyncio.to_thread(watcher.stop)
        await probes.cleanup()
    kube.close()
    for ended in ends:
        if isinstance(ended, Exception):
            _log.error("ended by a bug", exc_info=ended)
    return 0 if is_asked else 1


async def look_around(
    kube: ApiServer, settings: OperatorSettings, watcher: Watcher, add: Callable[[Key], None]
) -> None:
    """Every pool there is becomes a key, now and at every resync: what a watch has missed is found all the same.

    Kinds are resolved when the watches start, so they start once the resource is there.
    """
    while True:
        listed = [await _add_all(kube, namespace, add) for namespace in settings.namespaces or (None,)]
        if any(listed):
            watcher.start()
        await asyncio.sleep(settings.reconcile.resync_seconds if all(listed) else CRD_POLL_SECONDS)


async def _add_all(kube: ApiServer, namespace: str | None, add: Callable[[Key], None]) -> bool:
    """Whether they could be listed."""
    try:
        pools = await kube.list(POOL, namespace)
    except NotFound:
        _log.warning("inferencepools.tidegate.dev is not installed; waiting for its CRD")
        return False
    except KubeError as error:
        _log.warning("%s", error)
        return False
    for pool in pools:
        add((pool["metadata"]["namespace"], pool["metadata"]["name"]))
    return True


def build_queue(
    settings: OperatorSettings, kube: ApiServer, engines: AdminPorts, token: str, metrics: Metrics
) -> WorkQueue:
    """The reconciler with all it needs, behind the queue."""
    reconciler = Reconciler(
        kube=kube,
        engines=engines,
        nodes=NodeCache(kube, is_allowed=settings.is_cluster_wide),
        recorder=EventRecorder(kube, socket.gethostname()),
        settings=plan_settings(settings, token),
        clock=lambda: datetime.now(UTC),
    )
    schedule = Schedule(Timing(resync_seconds=settings.reconcile.resync_seconds))
    return WorkQueue(reconciler, schedule, num_workers=settings.reconcile.workers, on_run=metrics.on_run)


if __name__ == "__main__":
    sys.exit(main())
