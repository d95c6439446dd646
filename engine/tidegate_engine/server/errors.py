"""What a client is told when a request cannot be served, in the shape OpenAI's clients parse.

{"error": {"message": what and what to do, "type": class of fault, "param": field at fault, "code": machine-readable}}
Routes raise ApiError, engine errors are translated here once, and `install` makes every other fault look the same.
"""

import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fastapi import FastAPI, Request
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from tidegate_engine.errors import (
    BadRequest,
    Draining,
    EngineError,
    EngineFailed,
    NeverFits,
    QueueFull,
    TenantOverShare,
)

logger = logging.getLogger(__name__)

INVALID_REQUEST = "invalid_request_error"
SERVER_ERROR = "server_error"
MAX_FAULTS = 1000  # more are not spelled out one by one: that takes far longer than finding them


class ErrorText(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(BaseModel):
    """The body of every answer that is none."""

    error: ErrorText


@dataclass
class ApiError(Exception):
    """One refused or failed request; `headers` go out with it."""

    status: int
    message: str
    type: str = INVALID_REQUEST
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def body(self) -> dict[str, dict[str, str | None]]:
        text = ErrorText(message=self.message, type=self.type, param=self.param, code=self.code)
        return ErrorAnswer(error=text).model_dump()

    def response(self) -> Response:
        return JSONResponse(self.body(), self.status, dict(self.headers))


def bad_request(message: str, *, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, message, param=param, code=code)


def unknown_model(name: str, served_names: tuple[str, ...]) -> ApiError:
    served = ", ".join(served_names)
    return ApiError(
        404, f"the model '{name}' is not served here; served: {served}", param="model", code="model_not_found"
    )


def unavailable(message: str, *, code: str, retry_after_seconds: float) -> ApiError:
    """503 that asks the client to come back, on a new connection that may reach another replica."""
    headers = {"retry-after": str(max(1, math.ceil(retry_after_seconds))), "connection": "close"}
    return ApiError(503, message, type=SERVER_ERROR, code=code, headers=headers)


def over_share(message: str, *, retry_after_seconds: float) -> ApiError:
    """429: another caller would still be let in, so it is this one that has to slow down."""
    headers = {"retry-after": str(max(1, math.ceil(retry_after_seconds)))}
    return ApiError(429, message, type="rate_limit_error", code="tenant_over_share", headers=headers)


def internal_error(message: str) -> ApiError:
    return ApiError(500, message, type=SERVER_ERROR, code="internal_error")


def from_engine(error: EngineError) -> ApiError:
    """What the engine refused, as HTTP. Unforeseen engine errors are ours: 500."""
    match error:
        case QueueFull():
            return unavailable(str(error), code="queue_full", retry_after_seconds=error.retry_after_seconds)
        case TenantOverShare():
            return over_share(str(error), retry_after_seconds=error.retry_after_seconds)
        case Draining():
            return unavailable(str(error), code="draining", retry_after_seconds=error.retry_after_seconds)
        case EngineFailed():
            return unavailable(str(error), code="engine_failed", retry_after_seconds=5)
        case BadRequest():
            return bad_request(str(error), param="prompt")
        case NeverFits():
            return bad_request(str(error), code="context_length_exceeded")
        case _:
            return internal_error(str(error))


def from_validation(error: ValidationError) -> ApiError:
    """The fault that says most, by the client's field path.

    Of the branches of a union that is the one that came closest: of the right kind but too long or too short, else the
    one whose fault lies deepest.
    """
    if error.error_count() > MAX_FAULTS:
        return bad_request(f"the request body has {error.error_count()} faults", code="invalid_value")
    faults = error.errors(include_url=False, include_input=False)
    fault = max(faults, key=lambda fault: (fault["type"] in _WRONG_LENGTH, len(fault["loc"])))
    return bad_request(_sentence(fault), param=_path(fault), code=_CODES.get(fault["type"], "invalid_value"))


_CODES = {
    "extra_forbidden": "unknown_parameter",
    "unsupported": "unsupported_parameter",
    "missing": "missing_parameter",
}


_WRONG_LENGTH = ("too_long", "too_short")
_JSON_WORDS = {  # pydantic speaks of Python's types
    "model_type": "Input should be an object",
    "dict_type": "Input should be an object",
    "list_type": "Input should be an array",
}


def _path(fault: ErrorDetails) -> str | None:
    """`messages[0].content` from a location; the names of pydantic's union branches are left out.

    Fields that do not go together are told by the one that is too much: its name is such a fault's type.
    """
    if fault["type"] in _TOO_MUCH:
        above = _joined(fault["loc"])
        return f"{above}.{fault['type']}" if above else fault["type"]
    if fault["type"] == "extra_forbidden":
        *parents, name = fault["loc"]
        above = _joined(parents)
        return f"{above}.{name}" if above else str(name)
    return _joined(fault["loc"]) or None


def _joined(parts: Iterable[int | str]) -> str:
    path = ""
    for part in parts:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part.isidentifier() and part.islower() and part not in _BRANCHES:
            path += f".{part}" if path else part
    return path


_BRANCHES = {"str", "int", "float", "bool"}
_TOO_MUCH = {
    "continue_final_message", "echo", "min_tokens", "n", "prompt_logprobs", "stream_options", "tool_calls",
    "tool_choice", "tools", "top_logprobs",
}  # fmt: skip


def _sentence(fault: ErrorDetails) -> str:
    path = _path(fault)
    match fault["type"]:
        case "extra_forbidden":
            return f"Unrecognized request argument supplied: {path}"
        case "missing":
            return f"Missing required parameter: '{path}'"
        case _:
            what = _JSON_WORDS.get(fault["type"], fault["msg"])
            return f"Invalid '{path}': {what}" if path else f"Invalid request body: {what}"


def install(app: FastAPI) -> None:
    """Every error leaves in OpenAI's shape, also those of the framework and of our own bugs."""
    app.add_exception_handler(ApiError, _on_api_error)
    app.add_exception_handler(EngineError, _on_engine_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(Exception, _on_bug)


async def _on_api_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.response()


async def _on_engine_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, EngineError)
    return from_engine(error).response()


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what = f"{request.method} {request.url.path}: {error.detail}"
    return ApiError(error.status_code, what, headers=error.headers or {}).response()


async def _on_bug(request: Request, error: Exception) -> Response:
    request_id = getattr(request.state, "request_id", "")
    logger.error("unhandled error in %s %s %s", request.method, request.url.path, request_id, exc_info=error)
    failed = internal_error("the server failed on this request; its log has the details")
    # Here no middleware adds the request's id, and the connection is closed after an exception.
    failed.headers = {"connection": "close", **({"x-request-id": request_id} if request_id else {})}
    return failed.response()
