"""The operator's own HTTP port: liveness, readiness and metrics.

/livez   the event loop that reconciles answers at all, and the watches' thread runs
/readyz  everything has been listed and is watched, whether this operator leads or stands by
/metrics Prometheus text, with this process's memory and CPU
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
TEXT = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True)
class Health:
    """Two questions of a kubelet."""

    is_alive: Callable[[], bool]
    is_ready: Callable[[], bool]


async def serve_probes(port: int, health: Health, metrics: CollectorRegistry) -> web.AppRunner:
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


def _metrics(registry: CollectorRegistry) -> Handler:
    async def handler(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": TEXT})

    return handler
