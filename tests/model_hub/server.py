"""A stand-in for a model hub: a real HTTP server that answers huggingface_hub as the hub does.

    GET       /api/models/ORG/NAME/revision/REV[?blobs=true]   commit, files, sizes
    HEAD, GET /ORG/NAME/resolve/REV/FILE                       small files; large ones are a redirect to
    GET       /storage/SHA256                                  storage that knows no token; parts by Range

Refusals carry the hub's status and X-Error-Code. A test sets `faults` to have it throttle, fail or cut answers short.
"""

import json
import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

from .repository import HubFile, Repository

_INFO = re.compile(r"/api/models/([^/]+/[^/]+)/revision/([^/]+)")
_RESOLVE = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")
_STORAGE = re.compile(r"/storage/([0-9a-f]{64})")
CHUNK_BYTES = 1 << 16


@dataclass
class Faults:
    """What goes wrong, each so many times."""

    num_throttled: int = 0
    retry_after_seconds: int = 0
    num_failing: int = 0  # HTTP 503
    num_failing_files: int = 0  # the same, while the repository can be listed
    num_cut_short: int = 0  # the connection ends in the middle of a large file
    served_before_cut_bytes: int = 0
    commit: str = ""  # told instead of the true one, as is the next
    etag: str = ""
    is_endless: bool = False  # files, whatever part was asked for


@dataclass
class Asked:
    """One request."""

    method: str
    path: str
    range: str | None
    token: str | None


class ModelHub(ThreadingHTTPServer):
    """`url` is what HF_ENDPOINT is set to."""

    daemon_threads = True

    def __init__(
        self, repositories: Iterable[Repository], tokens: Iterable[str] = (), host: str = "127.0.0.1", port: int = 0
    ):
        super().__init__((host, port), _Handler)
        self.repositories = {each.name: each for each in repositories}
        self.tokens = set(tokens)
        self.faults = Faults()
        self.asked: list[Asked] = []
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        host, port = self.server_address[:2]
        return f"http://{host!s}:{port}"

    @property
    def storage_url(self) -> str:
        """Another origin where this machine has one: tokens must not go there."""
        return self.url.replace("//127.0.0.1:", "//localhost:")

    def takes(self, fault: str) -> bool:
        """Whether this request is one of those that go wrong."""
        with self.lock:
            left = int(getattr(self.faults, fault))
            setattr(self.faults, fault, max(0, left - 1))
        return left > 0

    def ranges_of(self, path: str) -> list[str | None]:
        """The ranges in which a path was asked for by GET."""
        return [each.range for each in self.asked if each.method == "GET" and each.path == path]


@dataclass
class _Refusal(Exception):
    status: HTTPStatus
    code: str = ""
    message: str = ""
    headers: dict[str, str] = field(default_factory=dict)


class _Handler(BaseHTTPRequestHandler):
    server: ModelHub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the standard library's name
        """Requests are in `asked`."""

    def _answer(self) -> None:
        path = urlsplit(self.path).path
        self.server.asked.append(Asked(self.command, unquote(path), self.headers.get("Range"), self._token()))
        try:
            self._route(path)
        except _Refusal as refusal:
            self._refuse(refusal)

    def _route(self, path: str) -> None:
        """By the path as it was sent: a revision may hold an escaped slash."""
        self._fail_if_told()
        if match := _INFO.fullmatch(path):
            self._info(unquote(match[1]), unquote(match[2]))
        elif match := _RESOLVE.fullmatch(path):
            if not path.endswith(".index.json") and self.server.takes("num_failing_files"):
                raise _Refusal(HTTPStatus.SERVICE_UNAVAILABLE)
            self._resolve(unquote(match[1]), unquote(match[2]), unquote(match[3]))
        elif match := _STORAGE.fullmatch(path):
            self._storage(match[1])
        else:
            raise _Refusal(HTTPStatus.NOT_FOUND)

    def _fail_if_told(self) -> None:
        if self.server.takes("num_throttled"):
            seconds = str(self.server.faults.retry_after_seconds)
            raise _Refusal(HTTPStatus.TOO_MANY_REQUESTS, headers={"Retry-After": seconds})
        if self.server.takes("num_failing"):
            raise _Refusal(HTTPStatus.SERVICE_UNAVAILABLE)

    def _token(self) -> str | None:
        return self.headers.get("Authorization", "").removeprefix("Bearer ") or None

    def _repository(self, name: str, revision: str, *, is_file: bool) -> Repository:
        """As the hub: who may not see a repository is told that there is none; everybody may see that one is gated."""
        token = self._token()
        if token is not None and token not in self.server.tokens:
            words = "Invalid credentials in Authorization header"
            raise _Refusal(HTTPStatus.UNAUTHORIZED, message=words)
        found = self.server.repositories.get(name)
        if found is None or (found.is_private and token not in found.accepted_tokens):
            status = HTTPStatus.UNAUTHORIZED if token is None else HTTPStatus.NOT_FOUND
            raise _Refusal(status, "RepoNotFound", "Repository not found")
        if found.is_gated and is_file and token not in found.accepted_tokens:
            status = HTTPStatus.UNAUTHORIZED if token is None else HTTPStatus.FORBIDDEN
            raise _Refusal(status, "GatedRepo", f"Access to model {name} is restricted.")
        if not found.has_revision(revision):
            raise _Refusal(HTTPStatus.NOT_FOUND, "RevisionNotFound", f"Invalid rev id: {revision}")
        return found

    def _info(self, name: str, revision: str) -> None:
        found = self._repository(name, revision, is_file=False)
        siblings = [
            {"rfilename": file.name, "size": file.num_bytes, "blobId": file.blob_id} for file in found.files.values()
        ]
        document = {
            "id": name,
            "sha": self.server.faults.commit or found.commit,
            "private": found.is_private,
            "siblings": siblings,
        }
        body = json.dumps(document).encode()
        self._send(HTTPStatus.OK, {"Content-Type": "application/json"}, body)

    def _resolve(self, name: str, revision: str, file_name: str) -> None:
        found = self._repository(name, revision, is_file=True)
        file = found.files.get(file_name)
        if file is None:
            raise _Refusal(HTTPStatus.NOT_FOUND, "EntryNotFound", "Entry not found")
        etag = self.server.faults.etag or file.etag
        known = {"X-Repo-Commit": found.commit, "ETag": f'"{etag}"'}
        if file.is_large:
            linked = {
                "X-Linked-Etag": f'"{self.server.faults.etag or file.sha256}"',
                "X-Linked-Size": str(file.num_bytes),
            }
            place = {"Location": f"{self.server.storage_url}/storage/{file.sha256}"}
            self._send(HTTPStatus.FOUND, known | linked | place, b"")
        else:
            self._send_file(file, known)

    def _storage(self, digest: str) -> None:
        for repository in self.server.repositories.values():
            for file in repository.files.values():
                if file.is_large and file.sha256 == digest:
                    self._send_file(file, {"ETag": f'"{digest}"'})
                    return
        raise _Refusal(HTTPStatus.NOT_FOUND)

    def _send_file(self, file: HubFile, headers: dict[str, str]) -> None:
        first, last, status = 0, file.num_bytes - 1, HTTPStatus.OK
        if match := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            first, status = int(match[1]), HTTPStatus.PARTIAL_CONTENT
            last = min(int(match[2] or last), last)
            if first > last:
                raise _Refusal(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE)
            headers = headers | {"Content-Range": f"bytes {first}-{last}/{file.num_bytes}"}
        if self.server.faults.is_endless and self.command == "GET":
            self._never_end()
            return
        self._send_head(status, headers | {"Accept-Ranges": "bytes"}, last - first + 1)
        if self.command == "HEAD":
            return
        left = last - first + 1
        if file.is_large and self.server.takes("num_cut_short"):
            left = min(left, self.server.faults.served_before_cut_bytes)
            self.close_connection = True
        with file.path.open("rb") as stream:
            stream.seek(first)
            while left > 0:
                chunk = stream.read(min(left, CHUNK_BYTES))
                self.wfile.write(chunk)
                left -= len(chunk)

    def _never_end(self) -> None:
        """Until the client has had enough."""
        self.close_connection = True
        self.send_response(HTTPStatus.OK)
        self.end_headers()
        with suppress(ConnectionError):
            while True:
                self.wfile.write(bytes(CHUNK_BYTES))

    def _refuse(self, refusal: _Refusal) -> None:
        named = {"X-Error-Code": refusal.code, "X-Error-Message": refusal.message}
        headers = {name: text for name, text in named.items() if text} | refusal.headers
        self._send(refusal.status, headers, json.dumps({"error": refusal.message}).encode())

    def _send(self, status: HTTPStatus, headers: dict[str, str], body: bytes) -> None:
        self._send_head(status, headers, len(body))
        if self.command != "HEAD":
            self.wfile.write(body)

    def _send_head(self, status: HTTPStatus, headers: dict[str, str], num_bytes: int) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(num_bytes))
        self.end_headers()


@contextmanager
def model_hub(*repositories: Repository, tokens: Iterable[str] = (), host: str = "127.0.0.1") -> Iterator[ModelHub]:
    """Serving on a free port of this machine; pods of a local cluster reach it at its network's `host`."""
    with ModelHub(repositories, tokens, host) as hub:
        thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.02}, name="hub", daemon=True)
        thread.start()
        try:
            yield hub
        finally:
            hub.shutdown()
            thread.join(10)
