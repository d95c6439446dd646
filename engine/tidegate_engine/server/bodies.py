"""Request bodies: read up to a limit in size and time, parsed, validated, every fault an OpenAI-shaped 4xx."""

import asyncio
from dataclasses import dataclass
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette.requests import ClientDisconnect, Request

from tidegate_engine.server.errors import ApiError, bad_request, from_validation

Body = TypeVar("Body", bound=BaseModel)


@dataclass(frozen=True)
class BodyLimits:
    """An upload may pause for `idle_seconds`, take `total_seconds` in all, and have `max_bytes`."""

    max_bytes: int
    idle_seconds: float = 20.0
    total_seconds: float = 120.0


async def read_body(request: Request, schema: type[Body], limits: BodyLimits) -> Body:
    """Raises ApiError: 408 too slow, 413 too large, 400 not JSON or not this schema."""
    try:
        async with asyncio.timeout(limits.total_seconds):
            body = await _read(request, limits)
    except TimeoutError as error:
        raise _too_slow(f"the request body took longer than {limits.total_seconds:g} s to arrive") from error
    try:
        # Not in one pass: validated while it is parsed, a body of empty lists takes a hundred times its size in memory.
        return schema.model_validate(from_json(body))
    except ValidationError as error:
        raise from_validation(error) from error
    except ValueError as error:
        raise bad_request(f"the request body is not valid JSON: {error}", code="invalid_json") from error


async def _read(request: Request, limits: BodyLimits) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limits.max_bytes:
        raise _too_large(limits.max_bytes)
    body = bytearray()
    parts = aiter(request.stream())
    try:
        while (part := await asyncio.wait_for(anext(parts, None), limits.idle_seconds)) is not None:
            body += part
            if len(body) > limits.max_bytes:
                raise _too_large(limits.max_bytes)
    except TimeoutError as error:
        message = f"nothing of the request body came for {limits.idle_seconds:g} s, after {len(body)} bytes of it"
        raise _too_slow(message) from error
    except ClientDisconnect as error:
        raise ApiError(400, "the client left before its request was complete") from error
    return bytes(body)


def _too_large(max_bytes: int) -> ApiError:
    message = f"the request body is larger than {max_bytes} bytes, more than any prompt this model can take"
    return _unread(413, message, code="request_too_large")


def _too_slow(message: str) -> ApiError:
    return _unread(408, message, code="request_timeout")


def _unread(status: int, message: str, code: str) -> ApiError:
    """The rest of the body is not read, so the connection cannot be used again."""
    return ApiError(status, message, code=code, headers={"connection": "close"})
