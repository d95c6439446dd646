"""Who is asking: API keys and the trusted proxy's header, settled before a route sees the request.

Nothing of a body is read for a caller who is not let in. /metrics and unknown paths outside the API stay open.
"""

import re
from dataclasses import dataclass, replace
from typing import Protocol

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from tidegate_engine.server.errors import ApiError
from tidegate_engine.server.keys import ANYBODY, ApiKeys, Caller

FAIRNESS_HEADER = "x-gateway-inference-fairness-id"
_FAIRNESS_ID = re.compile(r"[\x21-\x7e]{1,128}")
_API_PATHS = ("/tokenize", "/detokenize", "/v1")


class KeySource(Protocol):
    """The keys in force at this moment."""

    @property
    def keys(self) -> ApiKeys: ...

    @property
    def fault(self) -> str | None:
        """Why the newest version of the keys is not in force."""
        ...


@dataclass(frozen=True)
class Access:
    """Who may use the API. Without `keys`: everybody."""

    keys: KeySource | None = None
    is_fairness_header_trusted: bool = False

    def caller_of(self, headers: Headers) -> Caller:
        """Raises ApiError (401)."""
        caller = ANYBODY if self.keys is None else _known(self.keys.keys, headers.get("authorization", ""))
        tenant = headers.get(FAIRNESS_HEADER, "") if self.is_fairness_header_trusted else ""
        return replace(caller, tenant=tenant) if _FAIRNESS_ID.fullmatch(tenant) else caller


class Authentication:
    """ASGI middleware: puts the Caller into the request's state, or answers 401."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and is_api(scope["path"]):
            try:
                scope.setdefault("state", {})["caller"] = self._access.caller_of(Headers(scope=scope))
            except ApiError as error:
                await error.response()(scope, receive, send)
                return
        await self._app(scope, receive, send)


def is_api(path: str) -> bool:
    return any(path == root or path.startswith(f"{root}/") for root in _API_PATHS)


def caller_of(request: Request) -> Caller:
    caller = request.state.caller
    assert isinstance(caller, Caller), "the middleware has passed every request of the API"
    return caller


def _known(keys: ApiKeys, authorization: str) -> Caller:
    scheme, _, key = authorization.partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        raise _unauthorized("no API key was given: send 'Authorization: Bearer <key>'")
    caller = keys.caller_of(key.strip())
    if caller is None:
        raise _unauthorized("the API key is not known here; ask who runs this engine for one")
    return caller


def _unauthorized(message: str) -> ApiError:
    # The body is not read, so the connection cannot be used again.
    headers = {"www-authenticate": "Bearer", "connection": "close"}
    return ApiError(401, message, code="invalid_api_key", headers=headers)
