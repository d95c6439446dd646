"""The operator's own HTTP port: liveness, readiness and metrics of its reconciling.

/livez   the event loop that reconciles answers at all, and the watches' thread runs
/readyz  everything has been listed and is watched
/metrics Prometheus text, with this process's memory and CPU
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
TEXT = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """What a run of the queue leaves behind."""

    def __init__(self, depth: Callable[[], int]) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._total = Counter("tidegate_operator_reconcile", "Reconciles by result", ["result"], registry=self.registry)
        self._seconds = Histogram("tidegate_operator_reconcile_seconds", "Time of a reconcile", registry=self.registry)
        gauge = Gauge("tidegate_operator_workqueue_depth", "Pools that run or wait", registry=self.registry)
        gauge.set_function(depth)

    def on_run(self, seconds: float, is_success: bool) -> None:
        self._total.labels("success" if is_success else "error").inc()
        self._seconds.observe(seconds)


@dataclass(frozen=True)
class Health:
    """Two questions of a kubelet."""

    is_alive: Callable[[], bool]
    is_ready: Callable[[], bool]


async def serve_probes(port: int, health: Health, metrics: Metrics) -> web.AppRunner:
    """Returns once the port listens; `cleanup()` of the runner closes it."""
    app = web.Application()
    app.add_routes([
        web.get("/livez", _answer(health.is_alive)),
        web.get("/readyz", _answer(health.is_ready)),
        web.get("/metrics", _metrics(metrics)),
    ])  # fmt: skip
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, port=port).start()
    return runner


def _answer(predicate: Callable[[], bool]) -> Handler:
    async def handler(_: web.Request) -> web.Response:
        is_good = predicate()
        return web.Response(text="ok" if is_good else "not yet", status=200 if is_good else 503)

    return handler


def _metrics(metrics: Metrics) -> Handler:
    async def handler(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(metrics.registry), headers={"Content-Type": TEXT})

    return handler
