"""The admin port: probes follow the engine, not requests; only a known token may drain."""

import hashlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx
import pytest

from in_process import CONTEXT, MODEL, START, running_app
from tidegate_core.telemetry import LoadReport
from tidegate_engine.server.admin import Phase, ProcessState, create_admin_app
from waiting import eventually_async

pytestmark = pytest.mark.anyio

TOKEN, OLD_TOKEN = "drain-me", "drained-before-the-rotation"
DIGESTS = tuple(hashlib.sha256(token.encode()).hexdigest() for token in (TOKEN, OLD_TOKEN))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@dataclass
class StuckEngine:
    """An engine whose loop does not move: what /livez must see without asking it anything."""

    is_stuck: bool
    is_draining: bool = False

    def load(self) -> LoadReport:
        raise AssertionError("a probe must not ask a stuck engine for its load")

    def drain(self) -> None: ...
    def undrain(self) -> None: ...


@asynccontextmanager
async def admin(state: ProcessState, digests: tuple[str, ...] = DIGESTS) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_admin_app(state, digests))
    async with httpx.AsyncClient(transport=transport, base_url="http://admin") as client:
        yield client


@asynccontextmanager
async def serving(digests: tuple[str, ...] = DIGESTS) -> AsyncIterator[tuple[httpx.AsyncClient, ProcessState]]:
    async with running_app() as served:
        state = ProcessState(Phase.SERVING, served.engine)
        async with admin(state, digests) as client:
            yield client, state


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def test_while_the_model_loads_the_process_is_alive_and_not_ready():
    async with admin(ProcessState()) as client:
        livez, readyz, load = [await client.get(path) for path in ("/livez", "/readyz", "/load")]
        drain = await client.post("/drain", headers=bearer(TOKEN))
    assert livez.status_code == 200
    assert readyz.status_code == 503
    assert readyz.json()["reason"] == "loading"
    assert load.status_code == drain.status_code == 503
    assert "retry-after" in load.headers


async def test_a_serving_engine_is_alive_ready_and_tells_its_load():
    async with serving() as (client, _):
        assert (await client.get("/livez")).status_code == 200
        assert (await client.get("/readyz")).status_code == 200
        report = LoadReport.model_validate((await client.get("/load")).json())
    assert report.kv_blocks_total > 0
    assert not report.draining


async def test_a_load_report_says_how_long_the_start_took():
    async with running_app() as served, admin(ProcessState(Phase.SERVING, served.engine, start=START)) as client:
        report = LoadReport.model_validate((await client.get("/load")).json())
    assert report.start == START


async def test_load_and_metrics_are_answered_where_usual_requests_are_longer_than_what_fits():
    async with running_app(usual_tokens=16 * CONTEXT) as served:
        async with admin(ProcessState(Phase.SERVING, served.engine)) as client:
            load = await client.get("/load")
        metrics = await served.client.get("/metrics")
    assert (load.status_code, metrics.status_code) == (200, 200)
    assert LoadReport.model_validate(load.json()).eta_seconds == 0.0


@pytest.mark.parametrize("is_stuck", [False, True])
async def test_an_engine_without_progress_is_not_alive(is_stuck):
    async with admin(ProcessState(Phase.SERVING, StuckEngine(is_stuck))) as client:
        response = await client.get("/livez")
    assert response.status_code == (503 if is_stuck else 200)


async def test_a_frozen_step_is_noticed_within_15_seconds_and_a_step_that_moves_on_is_alive_again():
    async with running_app() as served, admin(ProcessState(Phase.SERVING, served.engine)) as client:
        before = time.monotonic()
        with served.gate.closed():
            running = served.background("/v1/completions", {"model": MODEL, "prompt": "x", "max_tokens": 2})

            async def is_dead() -> bool:
                return (await client.get("/livez")).status_code == 503

            await eventually_async(is_dead, timeout_seconds=60)
            noticed_after = time.monotonic() - before
        assert (await running).status_code == 200
        assert (await client.get("/livez")).status_code == 200
    assert noticed_after <= 15


async def test_probes_are_answered_beside_a_step_that_does_not_end_and_never_become_requests():
    async with running_app() as served, admin(ProcessState(Phase.SERVING, served.engine)) as client:
        with served.gate.closed():
            running = served.background("/v1/completions", {"model": MODEL, "prompt": "x", "max_tokens": 2})
            await served.eventually(lambda: served.load().running == 1)
            for path in ("/livez", "/readyz") * 50:
                assert (await client.get(path)).status_code == 200
            report = served.load()
        assert (await running).status_code == 200
    assert (report.arrivals, report.running, report.waiting) == (1, 1, 0)


async def test_a_stopping_process_is_alive_and_not_ready():
    async with serving() as (client, state):
        state.phase = Phase.STOPPING
        assert (await client.get("/readyz")).json()["reason"] == "stopping"
        assert (await client.get("/livez")).status_code == 200


@pytest.mark.parametrize("token", [TOKEN, OLD_TOKEN])
async def test_a_known_token_drains_and_undrains(token):
    async with serving() as (client, _):
        drained = await client.post("/drain", headers=bearer(token))
        unready = await client.get("/readyz")
        undrained = await client.post("/undrain", headers=bearer(token))
        ready = await client.get("/readyz")
    assert drained.json()["draining"] is True
    assert (unready.status_code, unready.json()["reason"]) == (503, "draining")
    assert undrained.json()["draining"] is False
    assert ready.status_code == 200


async def test_a_stopping_engine_is_not_opened_again():
    async with serving() as (client, state):
        assert state.engine is not None
        state.engine.drain()
        state.phase = Phase.STOPPING
        refused = await client.post("/undrain", headers=bearer(TOKEN))
        assert state.engine.is_draining
    assert refused.status_code == 409
    assert refused.json()["error"]["code"] == "stopping"


@pytest.mark.parametrize("path", ["/drain", "/undrain"])
@pytest.mark.parametrize(
    ("headers", "digests", "status"),
    [
        ({}, DIGESTS, 401),
        ({"Authorization": "Basic abc"}, DIGESTS, 401),
        ({"Authorization": "Bearer "}, DIGESTS, 401),
        (bearer("wrong"), DIGESTS, 403),
        (bearer(DIGESTS[0]), DIGESTS, 403),
        (bearer(TOKEN), (), 403),
        ({}, (), 403),
    ],
    ids=["no token", "another scheme", "empty token", "wrong token", "the digest itself", "no digest known", "nothing"],
)
async def test_nobody_else_may_drain(path, headers, digests, status):
    async with serving(digests) as (client, state):
        response = await client.post(path, headers=headers)
        assert response.status_code == status
        assert response.json()["error"]["message"]
        assert not state.engine.is_draining
        assert (await client.get("/readyz")).status_code == 200
