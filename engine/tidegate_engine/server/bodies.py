"""Request bodies: read up to a limit, parsed, validated, every fault an OpenAI-shaped 4xx."""

from typing import TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette.requests import ClientDisconnect, Request

from tidegate_engine.server.errors import ApiError, bad_request, from_validation

Body = TypeVar("Body", bound=BaseModel)


async def read_body(request: Request, schema: type[Body], *, max_bytes: int) -> Body:
    """Raises ApiError: 413 too large, 400 not JSON or not this schema."""
    body = await _read(request, max_bytes)
    try:
        # Not in one pass: validated while it is parsed, a body of empty lists takes a hundred times its size in memory.
        return schema.model_validate(from_json(body))
    except ValidationError as error:
        raise from_validation(error) from error
    except ValueError as error:
        raise bad_request(f"the request body is not valid JSON: {error}", code="invalid_json") from error


async def _read(request: Request, max_bytes: int) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > max_bytes:
        raise _too_large(max_bytes)
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > max_bytes:
                raise _too_large(max_bytes)
    except ClientDisconnect as error:
        raise ApiError(400, "the client left before its request was complete") from error
    return bytes(body)


def _too_large(max_bytes: int) -> ApiError:
    # The rest of the body is not read, so the connection cannot be used again.
    message = f"the request body is larger than {max_bytes} bytes, more than any prompt this model can take"
    return ApiError(413, message, code="request_too_large", headers={"connection": "close"})
