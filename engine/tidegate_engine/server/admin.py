"""The admin app (port 8001): probes, metrics, load and drain. It answers before the model is loaded and never queues.

/livez follows the engine loop itself (it stepped, or has nothing to do), so a frozen engine cannot look alive and a
long prompt cannot look dead; no probe becomes a request. Draining needs a bearer token; only its hash is known here.
"""

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from fastapi import FastAPI, Request
from prometheus_client import CollectorRegistry
from starlette.responses import JSONResponse, Response

from tidegate_core.telemetry import (
    DRAIN_PATH,
    LIVEZ_PATH,
    LOAD_PATH,
    METRICS_PATH,
    READYZ_PATH,
    UNDRAIN_PATH,
    LoadReport,
    StartReport,
)
from tidegate_engine.server import errors
from tidegate_engine.server.errors import ApiError, unavailable
from tidegate_engine.server.metrics import metrics_response

LOADING_RETRY_SECONDS = 5.0


class Phase(StrEnum):
    """Where a process is in its life; the words are the reasons /readyz gives."""

    LOADING = "loading"
    SERVING = "serving"
    STOPPING = "stopping"


class AdminEngine(Protocol):
    """What probes and the operator need of the engine loop."""

    @property
    def is_draining(self) -> bool: ...

    @property
    def is_stuck(self) -> bool: ...

    def load(self) -> LoadReport: ...
    def drain(self) -> None: ...
    def undrain(self) -> None: ...


@dataclass
class ProcessState:
    """Moved along by serve.py, reported by the admin routes. `engine` is set before SERVING."""

    phase: Phase = Phase.LOADING
    engine: AdminEngine | None = None
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    start: StartReport | None = None

    def unready_reason(self) -> str | None:
        """Why no new request should come here; None when ready."""
        if self.phase is not Phase.SERVING:
            return self.phase.value
        return "draining" if self.engine is not None and self.engine.is_draining else None

    def is_alive(self) -> bool:
        return self.engine is None or not self.engine.is_stuck


def create_admin_app(state: ProcessState, drain_token_sha256: tuple[str, ...]) -> FastAPI:
    """`drain_token_sha256`: lower-case hex digests of the tokens that may drain; none: nobody may."""
    app = FastAPI(title="Tidegate engine admin", openapi_url=None)
    errors.install(app)

    @app.get(LIVEZ_PATH)
    async def livez() -> Response:
        return _probe(None if state.is_alive() else "stuck")

    @app.get(READYZ_PATH)
    async def readyz() -> Response:
        return _probe(state.unready_reason())

    @app.get(METRICS_PATH)
    async def metrics(request: Request) -> Response:
        return metrics_response(request, state.registry)

    @app.get(LOAD_PATH)
    async def load() -> Response:
        return _load_response(_loaded(state), state.start)

    @app.post(DRAIN_PATH)
    async def drain(request: Request) -> Response:
        return _authorized(request, lambda engine: engine.drain())

    @app.post(UNDRAIN_PATH)
    async def undrain(request: Request) -> Response:
        return _authorized(request, lambda engine: undrain_unless_stopping(state.phase, engine))

    def _authorized(request: Request, act: Callable[[AdminEngine], None]) -> Response:
        check_token(request.headers.get("authorization", ""), drain_token_sha256)
        engine = _loaded(state)
        act(engine)
        return _load_response(engine, state.start)

    return app


def undrain_unless_stopping(phase: Phase, engine: AdminEngine) -> None:
    """Raises ApiError (409) after SIGTERM: what is let in then would be cut off, and keep others from finishing."""
    if phase is Phase.STOPPING:
        raise ApiError(409, "this engine is stopping and cannot be undrained; use its successor", code="stopping")
    engine.undrain()


def check_token(authorization: str, sha256_digests: tuple[str, ...]) -> None:
    """Raises ApiError: 403 where nobody may or the token is wrong, 401 where none was given."""
    if not sha256_digests:
        raise ApiError(
            403, "this engine was started without --drain-token-sha256, so nobody may drain it", code="forbidden"
        )
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() != "bearer" or not token:
        headers = {"www-authenticate": "Bearer"}
        raise ApiError(401, "send 'Authorization: Bearer <drain token>'", code="unauthorized", headers=headers)
    digest = hashlib.sha256(token.strip().encode()).hexdigest()
    # Every digest is compared, so that the time tells nothing about which one matched.
    if not any([hmac.compare_digest(digest, known.lower()) for known in sha256_digests]):  # noqa: C419
        raise ApiError(403, "this token may not drain this engine", code="forbidden")


def _loaded(state: ProcessState) -> AdminEngine:
    if state.engine is None:
        raise unavailable("the model is still loading", code="loading", retry_after_seconds=LOADING_RETRY_SECONDS)
    return state.engine


def _load_response(engine: AdminEngine, start: StartReport | None) -> Response:
    """The engine loop's own report, and how the process around it started."""
    report = engine.load().model_copy(update={"start": start})
    return Response(report.model_dump_json(by_alias=True), media_type="application/json")


def _probe(fault: str | None) -> Response:
    if fault is None:
        return JSONResponse({"status": "ok"})
    return JSONResponse({"status": "unavailable", "reason": fault}, status_code=503)
