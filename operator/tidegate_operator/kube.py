"""The seam to the API server: Protocol `Kube`, and its one implementation over the official client.

Everything above speaks plain manifests and this protocol, so that the client can be replaced and faults injected. The
client is synchronous; requests run in a small thread pool of their own, so that a slow API server can neither exhaust
the default executor nor block the event loop. Writes are server-side applies under fixed field managers: children by
`tidegate`, the status by `tidegate-status`, since one name for both would let each apply drop the other's fields.
"""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self
from urllib.parse import quote, urlencode

import urllib3
from kubernetes import config
from kubernetes.client import ApiClient, Configuration

from tidegate_operator.errors import (
    BadRequest,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    KubeError,
    NotFound,
    ServerFault,
    TooManyRequests,
    Unauthorized,
    Unreachable,
)
from tidegate_operator.resources import Manifest, Resource, resource_of

CHILD_MANAGER = "tidegate"
STATUS_MANAGER = "tidegate-status"
USER_AGENT = "tidegate-operator"
PAGE_SIZE = 100  # objects as dicts take five times their text, and Python keeps most of what a peak took
LONGEST_RETRY_AFTER_SECONDS = 300.0
_APPLY = "application/apply-patch+yaml"
_NO_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")  # as they are; escaped they are
MAX_MESSAGE_CHARACTERS = 512  # bodies of errors reach logs and conditions: clip them

_BY_STATUS: Mapping[int, type[KubeError]] = {
    400: BadRequest, 401: Unauthorized, 403: Forbidden, 404: NotFound, 409: Conflict, 410: Gone, 413: BadRequest,
    415: BadRequest, 422: Invalid, 429: TooManyRequests,
}  # fmt: skip


@dataclass(frozen=True)
class Connection:
    """Where the API server is and who we are, for whoever has to open a connection of its own."""

    server: str
    token: str | None
    ca_file: str | None
    certificate_file: str | None
    key_file: str | None


OnRequest = Callable[[str, str, float], None]  # verb, code ("" without an answer), seconds; in a worker thread


def ignore_request(_verb: str, _code: str, _seconds: float) -> None:
    """For whoever counts nothing."""


class Page(NamedTuple):
    """A part of a list; all parts are the state as of one resourceVersion."""

    items: tuple[Manifest, ...]
    version: int


class Kube(Protocol):
    """What the operator asks of an API server. Every method raises a KubeError when it is refused."""

    async def get(
        self, resource: Resource, namespace: str | None, name: str, *, max_age_seconds: float = 0.0
    ) -> Manifest | None:
        """The object, or None where there is none. Whoever keeps answers may give one of that age."""

    async def list(
        self, resource: Resource, namespace: str | None, *, labels: str = "", fields: str = ""
    ) -> tuple[Manifest, ...]:
        """All objects that label and field selectors select; without a namespace those of all namespaces."""

    def pages(
        self, resource: Resource, namespace: str | None, *, labels: str = "", fields: str = ""
    ) -> AsyncIterator[Page]:
        """The same, a part at a time: a long list never lies in memory at once.

        With a field selector all at once, and as of the API server's own cache: that has an index of fields, while etcd
        would be read from end to end for the few that are selected.
        """

    async def apply(self, manifest: Manifest, *, is_rehearsal: bool = False) -> Manifest:
        """Server-side apply as `tidegate`, forced: fields in the manifest are ours, fields left out are not touched.

        A rehearsal is answered in the same way and stores nothing.
        """

    async def patch(self, resource: Resource, namespace: str, name: str, patch: Manifest) -> Manifest:
        """Merge patch, for objects that others own (pods). With another `metadata.uid` in it: Invalid."""

    async def delete(self, resource: Resource, namespace: str, name: str, uid: str) -> Manifest | None:
        """Delete this very object and, in the background, what it owns. Already gone or replaced is fine.

        The object when finalizers still hold it, None when it is gone.
        """

    async def patch_status(self, pool: Manifest) -> Manifest:
        """Server-side apply of a pool's status subresource as `tidegate-status`."""

    async def create(self, manifest: Manifest) -> Manifest:
        """Create what must not be there yet: Conflict where it is."""


class ApiServer:
    """Kube over the official client."""

    def __init__(
        self,
        client: ApiClient,
        *,
        num_threads: int = 8,
        connect_timeout_seconds: float = 5,
        timeout_seconds: float = 20,
        on_request: OnRequest = ignore_request,
    ) -> None:
        self._client = client
        self._client.user_agent = USER_AGENT
        self._executor = ThreadPoolExecutor(num_threads, thread_name_prefix="kube")
        self._timeout = (connect_timeout_seconds, timeout_seconds)
        self._on_request = on_request

    @classmethod
    def connect(
        cls,
        kubeconfig: str | None = None,
        *,
        num_threads: int = 8,
        timeout_seconds: float = 20,
        on_request: OnRequest = ignore_request,
    ) -> Self:
        """From a kubeconfig file, or from the pod's ServiceAccount when there is none."""
        configuration = Configuration()
        if kubeconfig:
            config.load_kube_config(kubeconfig, client_configuration=configuration)  # type: ignore[no-untyped-call]
        else:
            config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        configuration.connection_pool_maxsize = num_threads
        configuration.retries = urllib3.Retry(connect=2, read=0, redirect=0, status=0, backoff_factor=0.1)
        client = ApiClient(configuration)
        return cls(client, num_threads=num_threads, timeout_seconds=timeout_seconds, on_request=on_request)

    def connection(self) -> "Connection":
        """As it is right now: the token of a ServiceAccount changes every hour."""
        configuration = self._client.configuration
        bearer = configuration.get_api_key_with_prefix("BearerToken") or ""
        return Connection(
            server=configuration.host,
            token=bearer.partition(" ")[2] or None,  # the scheme is `Bearer` from a kubeconfig, `bearer` from a pod
            ca_file=configuration.ssl_ca_cert,
            certificate_file=configuration.cert_file,
            key_file=configuration.key_file,
        )

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)
        self._client.rest_client.pool_manager.clear()

    async def get(
        self, resource: Resource, namespace: str | None, name: str, *, max_age_seconds: float = 0.0
    ) -> Manifest | None:
        del max_age_seconds  # it keeps none
        try:
            return await self._call("GET", resource.path(namespace, name))
        except NotFound:
            return None

    async def list(
        self, resource: Resource, namespace: str | None, *, labels: str = "", fields: str = ""
    ) -> tuple[Manifest, ...]:
        pages = [page.items async for page in self.pages(resource, namespace, labels=labels, fields=fields)]
        return tuple(item for items in pages for item in items)

    async def pages(
        self, resource: Resource, namespace: str | None, *, labels: str = "", fields: str = ""
    ) -> AsyncIterator[Page]:
        selectors = {"labelSelector": labels, "fieldSelector": fields}
        extent = {"resourceVersion": "0"} if fields else {"limit": str(PAGE_SIZE)}  # see the Protocol
        query = extent | {name: text for name, text in selectors.items() if text}
        kind = {"apiVersion": resource.api_version, "kind": resource.kind}  # items of a list come without it
        while True:
            page = await self._call("GET", resource.path(namespace), query)
            yield Page(tuple({**kind, **item} for item in page["items"]), int(page["metadata"]["resourceVersion"]))
            token = page["metadata"].get("continue")
            if not token:
                return
            query["continue"] = token

    async def apply(self, manifest: Manifest, *, is_rehearsal: bool = False) -> Manifest:
        path = _path_of(manifest)
        query = _apply_as(CHILD_MANAGER) | ({"dryRun": "All"} if is_rehearsal else {})
        return await self._call("PATCH", path, query, manifest, _APPLY)

    async def patch(self, resource: Resource, namespace: str, name: str, patch: Manifest) -> Manifest:
        query = {"fieldManager": CHILD_MANAGER}
        return await self._call("PATCH", resource.path(namespace, name), query, patch, "application/merge-patch+json")

    async def delete(self, resource: Resource, namespace: str, name: str, uid: str) -> Manifest | None:
        options = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        try:
            answer = await self._call("DELETE", resource.path(namespace, name), body=options)
        except (NotFound, Conflict):  # gone, or another object under the same name
            return None
        metadata = answer["metadata"]  # some kinds answer with what was removed, others with a Status
        is_held = metadata.get("finalizers") or metadata.get("deletionGracePeriodSeconds")
        return answer if is_held else None

    async def patch_status(self, pool: Manifest) -> Manifest:
        path = _path_of(pool, "status")
        return await self._call("PATCH", path, _apply_as(STATUS_MANAGER), pool, _APPLY)

    async def create(self, manifest: Manifest) -> Manifest:
        path = resource_of(manifest).path(manifest["metadata"]["namespace"])
        return await self._call("POST", path, {"fieldManager": CHILD_MANAGER}, manifest)

    async def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Manifest | None = None,
        content_type: str = "application/json",
    ) -> dict[str, Any]:  # JSON from the server
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, self._request, method, path, query, body, content_type)

    def _request(
        self, method: str, path: str, query: Mapping[str, str] | None, body: Manifest | None, content_type: str
    ) -> dict[str, Any]:  # JSON from the server
        target = quote(path) + (f"?{urlencode(query)}" if query else "")
        headers = {"Accept": "application/json", "Content-Type": content_type}
        sent = as_yaml(body) if content_type == _APPLY else body
        request = self._client.param_serialize(
            method, target, header_params=headers, body=sent, auth_settings=["BearerToken"]
        )
        started, code = time.monotonic(), ""
        try:
            response = self._client.call_api(*request[:4], _request_timeout=self._timeout)
            data, code = response.read(), str(response.status)  # type: ignore[no-untyped-call]
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise Unreachable(f"{method} {path}: the API server gave no answer: {error}") from error
        finally:
            self._on_request(method, code, time.monotonic() - started)
        if not 200 <= response.status < 300:
            raise error_of(method, path, response.status, data, response.headers.get("Retry-After"))
        try:
            answer: dict[str, Any] = json.loads(data)  # JSON from the server
        except ValueError as error:
            raise Unreachable(f"{method} {path}: the answer is not JSON; a proxy's?", response.status) from error
        return answer


def error_of(method: str, path: str, status: int, body: bytes, retry_after: str | None = None) -> KubeError:
    """The error class of an HTTP status, with the server's own sentence where it sent a Status object."""
    kind = _BY_STATUS.get(status, ServerFault if status >= 500 else KubeError)
    try:
        answer = json.loads(body)
        message, reason = str(answer.get("message", "")), str(answer.get("reason", ""))
    except (ValueError, AttributeError):  # a proxy's page: not repeated, it may hold anything
        message, reason = "the answer is not a Kubernetes Status", ""
    said = f"{method} {path}: HTTP {status}: {message[:MAX_MESSAGE_CHARACTERS]}"
    return kind(said, status, reason, _seconds(retry_after))


def as_yaml(manifest: Manifest | None) -> bytes:
    """JSON that is YAML as well: YAML knows no surrogate pairs, so an emoji (of a chat template) stands as it is."""
    text = json.dumps(manifest, ensure_ascii=False)
    return _NO_YAML.sub(lambda match: f"\\u{ord(match[0]):04x}", text).encode()


def _seconds(retry_after: str | None) -> float:
    """The API server sends whole seconds; a date, as a proxy may send, is no wish that we know."""
    return min(float(retry_after), LONGEST_RETRY_AFTER_SECONDS) if retry_after and retry_after.isdecimal() else 0.0


def _path_of(manifest: Manifest, subresource: str | None = None) -> str:
    metadata = manifest["metadata"]
    return resource_of(manifest).path(metadata.get("namespace"), metadata["name"], subresource)


def _apply_as(manager: str) -> dict[str, str]:
    return {"fieldManager": manager, "force": "true"}
