"""Requests to an API server from this process, as the cluster's administrator.

For whatever is asked again and again: a wait looks several times a second, and to start a kubectl for each look costs
more of a small machine than all that it waits for. What people type stays a kubectl (access.py).
"""

import json
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from http.client import HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import urlencode

from e2e.cluster.errors import ApiRefused
from e2e.cluster.spec import ClusterSpec

TIMEOUT_SECONDS = 60.0
Json = dict[str, Any]  # an object as the API server spells it
JSON_TYPE = "application/json"
NOT_FOUND = 404


class Requests:
    """A connection a request: they are cheap beside kubectl, and threads need not share one."""

    def __init__(self, spec: ClusterSpec) -> None:
        self._spec = spec

    def get(self, path: str, **query: str) -> Json:
        """One object or one list; selectors as the API spells them: `labelSelector`. Raises ApiRefused."""
        return self._ask("GET", path, query)

    def find(self, path: str) -> Json | None:
        """One object, None where there is none."""
        try:
            return self.get(path)
        except ApiRefused as error:
            if error.status == NOT_FOUND:
                return None
            raise

    def watch(self, path: str, **query: str) -> Iterator[Json]:
        """Events until the server ends it, as `timeoutSeconds` says."""
        target = _with_query(path, {"watch": "true"} | query)
        with self._answered("GET", target, None, JSON_TYPE) as answer:
            for line in answer:
                yield json.loads(line)

    def create(self, path: str, manifest: Mapping[str, Any], **query: str) -> Json:
        """`path` of the collection, or of a subresource that takes a POST."""
        return self._ask("POST", path, query, manifest)

    def delete(self, path: str, *, grace_seconds: int | None = None, **query: str) -> None:
        """One object, or those of a list that are selected, without waiting; what is gone already is fine."""
        grace = {} if grace_seconds is None else {"gracePeriodSeconds": grace_seconds}
        try:
            self._ask("DELETE", path, query, {"propagationPolicy": "Background"} | grace)
        except ApiRefused as error:
            if error.status != NOT_FOUND:
                raise

    def patch(self, path: str, patch: Mapping[str, Any]) -> Json:
        """Strategic merge patch of an object or a subresource, for the kinds that Kubernetes brings."""
        return self._ask("PATCH", path, {}, patch, "application/strategic-merge-patch+json")

    def _ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Mapping[str, Any] | None = None,
        content_type: str = JSON_TYPE,
    ) -> Json:
        with self._answered(method, _with_query(path, query), body, content_type) as answer:
            found: Json = json.loads(answer.read())
            return found

    @contextmanager
    def _answered(
        self, method: str, target: str, body: Mapping[str, Any] | None, content_type: str
    ) -> Iterator[HTTPResponse]:
        connection = HTTPSConnection(
            self._spec.api_host, self._spec.api_port, context=self._tls, timeout=TIMEOUT_SECONDS
        )
        headers = {"Accept": JSON_TYPE, "Content-Type": content_type}
        try:
            connection.request(method, target, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            if answer.status >= 300:
                raise ApiRefused(f"{method} {target}: HTTP {answer.status}: {_words(answer.read())}", answer.status)
            yield answer
        except (OSError, HTTPException) as error:
            raise ApiRefused(f"{method} {target}: no answer: {error!r}") from error
        finally:
            connection.close()

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self._spec.pki / "ca.crt"))
        context.load_cert_chain(self._spec.pki / "admin.crt", self._spec.pki / "admin.key")
        return context


def _words(body: bytes) -> str:
    """The server's own sentence where it sent a Status object."""
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace")


def _with_query(path: str, query: Mapping[str, str]) -> str:
    return f"{path}?{urlencode(query)}" if query else path
