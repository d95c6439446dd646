"""Composition root of the operator: settings in, parts built and connected, run until SIGTERM.

kopf's thread: watches ──▶ lookout ──key──▶ work queue ──▶ Reconciler ──▶ API server, engines   (main thread, one loop)
                             └─▶ cache ─────────────────────────▲
"""

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from uuid import uuid4

import aiohttp

from tidegate_operator.control.election import Elector, LeaseTiming
from tidegate_operator.control.handlers import Watcher
from tidegate_operator.control.lookout import Lookout
from tidegate_operator.control.metrics import Metrics
from tidegate_operator.control.probes import Health, serve_probes
from tidegate_operator.control.schedule import Schedule, Timing
from tidegate_operator.control.workqueue import WorkQueue
from tidegate_operator.decisions.engine_version import EngineDefaults
from tidegate_operator.decisions.integration import MonitoringDefaults
from tidegate_operator.decisions.plan import PlanSettings
from tidegate_operator.decisions.scale import ScaleTiming
from tidegate_operator.kube import ApiServer
from tidegate_operator.manifests.network_policy import Peers
from tidegate_operator.manifests.pod import Runtime
from tidegate_operator.reconcile import Reconciler
from tidegate_operator.report.events import EventRecorder
from tidegate_operator.resources import Key, Manifest, Resource
from tidegate_operator.settings import BadSettings, OperatorSettings, read_settings
from tidegate_operator.world.cache import Cache
from tidegate_operator.world.cached_kube import CachedKube
from tidegate_operator.world.drain_tokens import DrainTokens
from tidegate_operator.world.nodes import NodeCache
from tidegate_operator.world.quotas import QuotaCache
from tidegate_operator.world.scrape import AdminPorts
from tidegate_operator.world.surroundings import TTL_SECONDS, Surroundings

STOP_SECONDS = 20.0  # less than the pod's grace
_log = logging.getLogger("tidegate_operator")


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 after SIGTERM, 1 when watches broke or the lease is lost (start it again), 2 for bad settings."""
    parser = argparse.ArgumentParser(prog="tidegate operator", description="Serve InferencePools of a cluster.")
    parser.add_argument("--kubeconfig", help="absent: the pod's ServiceAccount")
    arguments = parser.parse_args(argv)
    try:
        settings = read_settings(os.environ)
        tokens = DrainTokens(settings.drain_token_file)
    except BadSettings as error:
        print(f"tidegate operator: {error}", file=sys.stderr)  # noqa: T201 - logging is a setting, too
        return 2
    logging.basicConfig(level=settings.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("kopf").setLevel(logging.WARNING)  # it reports every event it passes on
    logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)  # that signals are ours is on purpose
    return asyncio.run(run(settings, arguments.kubeconfig, tokens))


def plan_settings(settings: OperatorSettings, drain_token_sha256: str) -> PlanSettings:
    """What plan.py needs of the settings."""
    engine = settings.engine
    return PlanSettings(
        engine=EngineDefaults(
            runtime=Runtime(engine.image, engine.pod_template_patch, engine.image_pull_policy, settings.hub.endpoint),
            runner=engine.runner,
            drain_token_sha256=(drain_token_sha256,),
            sim_preemptions_per_minute=engine.sim_preemptions_per_minute,
        ),
        timing=ScaleTiming(settings.scrape.interval_seconds, settings.scrape.idle_interval_seconds),
        peers=Peers(settings.admin_peers, settings.client_peers),
        monitoring=MonitoringDefaults(settings.monitoring.pod_monitors, settings.monitoring.labels),
    )


async def run(settings: OperatorSettings, kubeconfig: str | None, tokens: DrainTokens) -> int:
    """Until a signal comes, the watches end, or another operator leads."""
    loop, stop, failed = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stop.set)

    def tell(resource: Resource, kind_of_event: str | None, item: Manifest) -> None:
        loop.call_soon_threadsafe(lookout.told, resource, kind_of_event, item)

    def end() -> None:
        loop.call_soon_threadsafe(failed.set)

    metrics = Metrics()
    kube = ApiServer.connect(kubeconfig, on_request=metrics.on_request)
    elector = elector_of(settings, kubeconfig, metrics)
    before_write = elector.require if elector else nothing_to_ask
    async with aiohttp.ClientSession() as session:
        engines = AdminPorts(
            session, tokens=tokens, before_write=before_write, timeout_seconds=settings.scrape.timeout_seconds
        )
        cache = Cache()
        cached = CachedKube(kube, cache, before_write=before_write)
        queue = build_queue(settings, cached, engines, tokens, metrics)
        lookout = build_lookout(settings, kube, cache, queue, elector)
        watcher = Watcher(kube.connection, tell, settings.namespaces, on_end=end)
        measure(metrics, queue, lookout, elector)
        health = Health(lambda: not failed.is_set(), lambda: watcher.is_ready and lookout.is_synced)
        probes = await serve_probes(settings.port, health, metrics.registry)
        look = asyncio.create_task(lookout.run(watcher.start), name="lookout")
        work = asyncio.create_task(reconcile_while_leading(elector, lookout, queue), name="work queue")
        waits = [asyncio.create_task(event.wait()) for event in (stop, failed)]
        await asyncio.wait([look, work, *waits], return_when=asyncio.FIRST_COMPLETED)
        is_asked = stop.is_set()
        for task in (work, look, *waits):
            task.cancel()
        ends = await asyncio.gather(work, look, *waits, return_exceptions=True)
        await asyncio.to_thread(watcher.stop)
        await probes.cleanup()
    kube.close()
    for ended in ends:
        if isinstance(ended, Exception):
            _log.error("ended by a bug", exc_info=ended)
    return 0 if is_asked else 1


def nothing_to_ask() -> None:
    """Before a write of an operator that is the only one."""


async def reconcile_while_leading(elector: Elector | None, lookout: Lookout, queue: WorkQueue) -> None:
    """Returns when another operator may lead. Cancelled: runs that have started end, then the next may begin."""
    if elector is None:
        await queue.run()
        return
    await elector.acquire()
    lookout.begin_anew()  # what the leader before us wrote last, a watch may not have told yet
    renewing, running = asyncio.create_task(elector.keep()), asyncio.create_task(queue.run())
    try:
        done, _ = await asyncio.wait((renewing, running), return_when=asyncio.FIRST_COMPLETED)
        for each in done:
            each.result()
    finally:
        running.cancel()  # ends the runs that have started
        await asyncio.wait((running,), timeout=STOP_SECONDS if elector.is_leading else 0)
        running.cancel()  # cuts them off
        await asyncio.wait((running,))
        renewing.cancel()
        await elector.release()


def elector_of(settings: OperatorSettings, kubeconfig: str | None, metrics: Metrics) -> Elector | None:
    """With a client of its own, whose threads no slow reconcile can hold."""
    election = settings.election
    if not election.namespace:
        return None
    timeout_seconds = election.renew_deadline_seconds / 2
    kube = ApiServer.connect(kubeconfig, num_threads=2, timeout_seconds=timeout_seconds, on_request=metrics.on_request)
    timing = LeaseTiming(election.duration_seconds, election.renew_deadline_seconds, election.retry_seconds)
    identity = f"{socket.gethostname()}_{uuid4()}"
    return Elector(kube, election.namespace, election.name, identity, timing)


def build_lookout(
    settings: OperatorSettings, kube: ApiServer, cache: Cache, queue: WorkQueue, elector: Elector | None
) -> Lookout:
    """A standby has nothing to do with what it hears; when it leads, everything becomes a key."""

    def add(key: Key) -> None:
        if elector is None or elector.is_leading:
            queue.add(key)

    return Lookout(kube, cache, add, namespaces=settings.namespaces, resync_seconds=settings.reconcile.resync_seconds)


def measure(metrics: Metrics, queue: WorkQueue, lookout: Lookout, elector: Elector | None) -> None:
    """Gauges that are asked when they are read."""
    metrics.gauge("workqueue_depth", "Pools that run or wait for a worker", lambda: queue.depth)
    metrics.gauge("leader", "1 while this operator writes", lambda: elector is None or elector.is_leading)
    metrics.watch_ages(lookout.ages)


def build_queue(
    settings: OperatorSettings, kube: CachedKube, engines: AdminPorts, tokens: DrainTokens, metrics: Metrics
) -> WorkQueue:
    """The reconciler with all it needs, behind the queue."""
    reconciler = Reconciler(
        kube=kube,
        engines=engines,
        nodes=NodeCache(kube, is_allowed=settings.is_cluster_wide),
        quotas=QuotaCache(kube, settings.namespaces),
        recorder=EventRecorder(kube, socket.gethostname()),
        settings=lambda: plan_settings(settings, tokens.current_sha256()),
        clock=lambda: datetime.now(UTC),
        pools=metrics.pools,
        details=metrics.details,
        surroundings=Surroundings(
            kube,
            settings.namespaces,
            settings.prices_file,
            ttl_seconds=min(TTL_SECONDS, settings.reconcile.resync_seconds),
        ),
        versions=kube.versions,
    )
    schedule = Schedule(Timing(resync_seconds=settings.reconcile.resync_seconds))
    return WorkQueue(reconciler, schedule, num_workers=settings.reconcile.workers, watcher=metrics)


if __name__ == "__main__":
    sys.exit(main())
