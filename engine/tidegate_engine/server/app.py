"""The OpenAI app of one process (port 8000), made from a Front; serve.py and tests run it."""

from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from starlette.datastructures import MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidegate_core.telemetry import METRICS_PATH
from tidegate_engine.server import errors
from tidegate_engine.server.callers import Access, Authentication
from tidegate_engine.server.front import Engine, Front
from tidegate_engine.server.metrics import metrics_endpoint
from tidegate_engine.server.openapi import OPENAPI_PATH, openapi_document
from tidegate_engine.server.request_ids import RequestId
from tidegate_engine.server.routes import router

OPEN_ACCESS = Access()


def create_app(front: Front, registry: CollectorRegistry, access: Access = OPEN_ACCESS) -> FastAPI:
    app = FastAPI(title="Tidegate engine", openapi_url=None)  # bodies are validated by our own reader, not FastAPI's
    app.state.front = front
    app.include_router(router)
    app.add_route(METRICS_PATH, metrics_endpoint(registry))
    document = openapi_document(front.model.names, front.model.vocab_size, needs_keys=access.keys is not None)
    app.add_route(OPENAPI_PATH, lambda _: JSONResponse(document))
    app.add_middleware(Authentication, access=access)
    app.add_middleware(CloseWhileBusy, engine=front.engine)
    app.add_middleware(RequestId)
    errors.install(app)
    return app


class CloseWhileBusy:
    """`Connection: close` on answers that start while requests wait or the engine drains.

    A ClusterIP balances connections, not requests: a kept-alive client would never find the replica that was added.
    """

    def __init__(self, app: ASGIApp, engine: Engine) -> None:
        self._app = app
        self._engine = engine

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_closing(message: Message) -> None:
            if message["type"] == "http.response.start" and self._is_busy():
                MutableHeaders(scope=message)["connection"] = "close"
            await send(message)

        await self._app(scope, receive, send_closing if scope["type"] == "http" else send)

    def _is_busy(self) -> bool:
        return self._engine.is_draining or self._engine.num_waiting > 0
