"""The hub as we use it: list a repository at a revision, read a part of a file, say where a file is to be fetched.

A thin layer over huggingface_hub, whose client knows endpoints, mirrors, proxies and redirects; errors are ours.
Without a token the library's own applies (HF_TOKEN, a login), so that people need no flag; pods have neither.
"""

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from huggingface_hub import HfApi, constants, get_session, hf_hub_url
from huggingface_hub.file_download import HfFileMetadata, get_hf_file_metadata
from huggingface_hub.utils import build_hf_headers, get_token, hf_raise_for_status

from tidegate_engine.hub.errors import HubUnreachable, asking

TIMEOUT_SECONDS = 30.0


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
        if info.sha is None:
            raise HubUnreachable(f"{self.endpoint} tells no commit for {repo}@{revision}; check HF_ENDPOINT")
        return Listing(repo, info.sha, {each.rfilename: each.size for each in info.siblings or ()})

    def locate(self, repo: str, commit: str, name: str) -> HfFileMetadata:
        """Where a file's bytes are, with its ETag and size. Raises HubError."""
        with self._asking(repo, commit):
            return get_hf_file_metadata(self._url(repo, commit, name), token=self.token, timeout=TIMEOUT_SECONDS)

    def read(self, repo: str, commit: str, name: str, *, num_bytes: int | None = None) -> bytes:
        """A file, or its first bytes; fewer where it is shorter. Raises HubError."""
        if num_bytes == 0:
            return b""
        span = {} if num_bytes is None else {"Range": f"bytes=0-{num_bytes - 1}"}
        with self._asking(repo, commit):
            answer = get_session().get(
                self._url(repo, commit, name), headers=self.headers() | span, timeout=TIMEOUT_SECONDS
            )
            hf_raise_for_status(answer)
        content: bytes = answer.content
        return content if num_bytes is None else content[:num_bytes]

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
