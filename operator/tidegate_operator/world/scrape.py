"""HTTP to the engines' admin ports: read their load, start and cancel drains.

observe.py reads, apply.py drains. One engine that hangs costs its own timeout and nobody else's: requests run side by
side, bounded, and a missing answer is a missing sample, never a zero.
"""

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import aiohttp
from pydantic import ValidationError

from tidegate_core.telemetry import ADMIN_PORT, DRAIN_PATH, LOAD_PATH, UNDRAIN_PATH, LoadReport
from tidegate_operator.errors import EngineUnreachable
from tidegate_operator.world.drain_tokens import DrainTokens
from tidegate_operator.world.observed import Pod

MAX_REPORT_BYTES = 65_536  # a report has about 1 kB


@dataclass(frozen=True)
class Answers:
    """What became of one round of GET /load, by pod name."""

    loads: Mapping[str, LoadReport]
    failures: Mapping[str, str]  # why there is no report, in words that stay the same from try to try


class Engines(Protocol):
    """What the operator asks of engines."""

    async def loads(self, pods: Iterable[Pod]) -> Answers:
        """Of the pods that run."""

    async def set_draining(self, pod: Pod, *, is_draining: bool) -> None:
        """Start or cancel the drain of a pod that has an address. Raises EngineUnreachable."""


class AdminPorts:
    """Engines over aiohttp. Without tokens only reads work; `before_write` raises where no engine may be told."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        *,
        tokens: DrainTokens | None,
        before_write: Callable[[], None] = lambda: None,
        timeout_seconds: float = 2.0,
        max_requests: int = 32,
        admin_port: int = ADMIN_PORT,
    ) -> None:
        self._session = session
        self._tokens = tokens
        self._before_write = before_write
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds)
        self._free = asyncio.Semaphore(max_requests)
        self._admin_port = admin_port

    async def loads(self, pods: Iterable[Pod]) -> Answers:
        asked = [pod for pod in pods if pod.is_running and pod.ip and not pod.is_terminating]
        reports = await asyncio.gather(*(self._load(pod) for pod in asked))
        named = list(zip((pod.name for pod in asked), reports, strict=True))
        return Answers(
            loads={name: report for name, report in named if isinstance(report, LoadReport)},
            failures={name: f"GET {LOAD_PATH}: {report}" for name, report in named if isinstance(report, str)},
        )

    async def set_draining(self, pod: Pod, *, is_draining: bool) -> None:
        assert pod.ip is not None
        url = self._url(pod.ip, DRAIN_PATH if is_draining else UNDRAIN_PATH)
        token = self._tokens.accepted_by(pod.drain_token_sha256) if self._tokens else None
        if token is None:
            raise EngineUnreachable(
                f"POST {url}: pod {pod.name} accepts no drain token of the operator; keep an old one beside "
                "the new one until its pods are gone"
            )
        headers = {"Authorization": f"Bearer {token}"}
        try:
            async with self._free:
                self._before_write()
                request = self._session.post(url, headers=headers, timeout=self._timeout, allow_redirects=False)
                async with request as response:
                    if response.status >= 300:
                        raise EngineUnreachable(f"POST {url}: HTTP {response.status}")
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise EngineUnreachable(f"POST {url}: {error!r}") from error

    async def _load(self, pod: Pod) -> LoadReport | str:
        """The report, or why it is a missing sample; the scaler knows what that means."""
        assert pod.ip is not None
        try:
            request = self._session.get(self._url(pod.ip, LOAD_PATH), timeout=self._timeout, allow_redirects=False)
            async with self._free, request as response:
                if response.status != 200:
                    return f"HTTP {response.status}"
                return LoadReport.model_validate_json(await _body(response))
        except (aiohttp.ClientError, TimeoutError, OSError, ValidationError) as error:
            return self._words(error)

    def _words(self, error: Exception) -> str:
        """Without addresses, values and times."""
        match error:
            case TimeoutError():
                return f"no answer within {self._timeout.total:g} s"
            case ValidationError():
                return "the body is not a load report"
            case aiohttp.ClientPayloadError():
                return "the body is cut off or too long"
            case aiohttp.ClientConnectorError(os_error=OSError(errno=int(number))):
                return f"cannot connect: {os.strerror(number)}"
            case _:
                return type(error).__name__

    def _url(self, ip: str, path: str) -> str:
        host = f"[{ip}]" if ":" in ip else ip
        return f"http://{host}:{self._admin_port}{path}"


async def _body(response: aiohttp.ClientResponse) -> bytes:
    """The whole body, if it is short: an engine that never stops talking must not fill our memory."""
    body = b""
    async for chunk in response.content.iter_chunked(MAX_REPORT_BYTES):
        body += chunk
        if len(body) > MAX_REPORT_BYTES:
            raise aiohttp.ClientPayloadError(f"more than {MAX_REPORT_BYTES} bytes")
    return body
