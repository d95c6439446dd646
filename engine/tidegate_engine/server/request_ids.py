"""X-Request-Id: the client's own if it sent one, else ours; on every answer, so that two logs can be joined."""

import re
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

REQUEST_ID_HEADER = "x-request-id"
_USABLE = re.compile(r"[\x21-\x7e]{1,128}")


class RequestId:
    """ASGI middleware; routes find the id as `request.state.request_id`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = usable_id(Headers(scope=scope).get(REQUEST_ID_HEADER, ""))
        scope.setdefault("state", {})["request_id"] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[REQUEST_ID_HEADER] = request_id
            await send(message)

        await self._app(scope, receive, send_with_id)


def usable_id(given: str) -> str:
    """What the client gave, unless it is too long or nothing that a header may carry back."""
    return given if _USABLE.fullmatch(given) else uuid.uuid4().hex
