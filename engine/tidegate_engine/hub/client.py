"""The hub as we use it: list a repository at a revision, read a part of a file, say where a file is to be fetched.

A thin layer over huggingface_hub, whose client knows endpoints, mirrors, proxies and redirects; errors are ours.
Without a token the library's own applies (HF_TOKEN, a login), so that people need no flag; pods have neither.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from huggingface_hub import HfApi, constants, get_session, hf_hub_url
from huggingface_hub.file_download import HfFileMetadata, get_hf_file_metadata
from huggingface_hub.utils import build_hf_headers, get_token, hf_raise_for_status

from tidegate_engine.hub.errors import HubUnreachable, asking

TIMEOUT_SECONDS = 30.0
MAX_WHOLE_BYTES = 128 * 2**20  # of a file that is no weights: the largest tokenizers have a quarter
_COMMIT = re.compile("[0-9a-f]{40}")
_ETAG = re.compile("[A-Za-z0-9_-][A-Za-z0-9_.-]{0,199}")


@dataclass(frozen=True)
class Listing:
    """A repository at one commit: its files with their sizes, None where the hub (a mirror) does not tell."""

    repo: str
    commit: str
    bytes_by_name: dict[str, int | None]


class Hub:
    """One endpoint with one identity."""

    def __init__(self, endpoint: str | None = None, token: str | None = None) -> None:
        self.endpoint = (endpoint or constants.ENDPOINT).rstrip("/")
        self.token = token
        self.has_token = (token or get_token()) is not None
        self._api = HfApi(endpoint=self.endpoint, token=token, library_name="tidegate")

    def list(self, repo: str, revision: str) -> Listing:
        """One request answers everything that can be wrong with repository, revision and token. Raises HubError."""
        with self._asking(repo, revision):
            try:
                info = self._api.model_info(repo, revision=revision, files_metadata=True, timeout=TIMEOUT_SECONDS)
            except ValueError as error:  # not JSON: a proxy's page
                raise HubUnreachable(f"{self.endpoint} does not answer as a hub does; check HF_ENDPOINT") from error
        if info.sha is None or not _COMMIT.fullmatch(info.sha):
            raise HubUnreachable(f"{self.endpoint} tells no commit for {repo}@{revision}; check HF_ENDPOINT")
        if _COMMIT.fullmatch(revision) and info.sha != revision:
            raise HubUnreachable(f"{self.endpoint} answers with {info.sha} for {repo}@{revision}; check HF_ENDPOINT")
        return Listing(repo, info.sha, {each.rfilename: each.size for each in info.siblings or ()})

    def locate(self, repo: str, commit: str, name: str) -> HfFileMetadata:
        """Where a file's bytes are, with its ETag and size. Raises HubError."""
        with self._asking(repo, commit):
            found = get_hf_file_metadata(self._url(repo, commit, name), token=self.token, timeout=TIMEOUT_SECONDS)
        if found.etag is None or not _ETAG.fullmatch(found.etag):  # it names a file of ours
            raise HubUnreachable(f"{self.endpoint} tells no ETag for {repo}/{name}; check HF_ENDPOINT")
        return found

    def read(self, repo: str, commit: str, name: str, *, num_bytes: int | None = None) -> bytes:
        """A file, or its first bytes; fewer where it is shorter. Raises HubError."""
        if num_bytes == 0:
            return b""
        span = {} if num_bytes is None else {"Range": f"bytes=0-{num_bytes - 1}"}
        with self._asking(repo, commit):
            asked = get_session().stream(
                "GET", self._url(repo, commit, name), headers=self.headers() | span, timeout=TIMEOUT_SECONDS
            )
            with asked as answer:
                if answer.is_error:
                    answer.read()
                hf_raise_for_status(answer)
                content = _first(answer.iter_bytes(), MAX_WHOLE_BYTES + 1 if num_bytes is None else num_bytes)
        if num_bytes is None and len(content) > MAX_WHOLE_BYTES:
            raise HubUnreachable(f"{self.endpoint}: {repo}/{name} does not end; check HF_ENDPOINT")
        return content

    def headers(self) -> dict[str, str]:
        """Of a request for a file: plain bytes, since a compressed part cannot be continued."""
        known: dict[str, str] = build_hf_headers(token=self.token, library_name="tidegate")
        return known | {"Accept-Encoding": "identity"}

    def headers_for(self, location: str) -> dict[str, str]:
        """The token is for the hub alone, not for the storage that it sends us to."""
        known = self.headers()
        if urlsplit(location).netloc != urlsplit(self.endpoint).netloc:
            known.pop("authorization", None)
        return known

    def _url(self, repo: str, commit: str, name: str) -> str:
        return hf_hub_url(repo, name, revision=commit, endpoint=self.endpoint)

    def _asking(self, repo: str, revision: str) -> Any:  # contextlib's own type has no public name
        return asking(self.endpoint, repo, revision, has_token=self.has_token)


def _first(chunks: Iterable[bytes], num_bytes: int) -> bytes:
    """No more is taken in than that: a mirror may know no ranges, and send all of a model."""
    content = bytearray()
    for chunk in chunks:
        content += chunk
        if len(content) >= num_bytes:
            break
    return bytes(content[:num_bytes])
