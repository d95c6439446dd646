"""Why a hub gives no model: one class per reaction; `code` and `reason` are the last words of whoever asked.

HubError
├── ModelGated        the terms were not accepted, or the token is of somebody who did not: a person does it
├── TokenInvalid      the hub does not accept the token: a person corrects the Secret
├── ModelNotFound     no such repository, or a private one that this token does not see
├── RevisionNotFound  the repository has no such branch, tag or commit
├── HubThrottled      too many requests: `retry_after_seconds` later
├── HubUnreachable    no answer, or not a hub's: later
└── CacheFull         the volume has no room for the files: a person makes it larger
"""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError
from huggingface_hub.file_download import FileMetadataError

from tidegate_core.termination import ExitCode, TerminationMessage
from tidegate_engine.errors import EngineError

_BAD_TOKEN = "Invalid credentials in Authorization header"  # noqa: S105 - the hub's words, not a token
MAX_DIGITS = 4  # of a Retry-After in seconds that means something
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class HubError(EngineError):
    """Base of what a hub, or the disk its files go to, refuses."""

    code = ExitCode.HUB_UNAVAILABLE
    retry_after_seconds: int | None = None

    def last_words(self) -> TerminationMessage:
        return TerminationMessage(
            reason=type(self).__name__, message=str(self), retry_after_seconds=self.retry_after_seconds
        )


class ModelGated(HubError):
    """The repository's owner lets in only who accepted its terms."""

    code = ExitCode.ACCESS_DENIED


class TokenInvalid(HubError):
    """A token that the hub does not know, or that may not read."""

    code = ExitCode.ACCESS_DENIED


class ModelNotFound(HubError):
    """A repository or file that is not there for us."""

    code = ExitCode.MODEL_UNREACHABLE


class RevisionNotFound(HubError):
    """A branch, tag or commit that the repository does not have."""

    code = ExitCode.MODEL_UNREACHABLE


class HubThrottled(HubError):
    """HTTP 429."""

    def __init__(self, message: str, retry_after_seconds: int | None) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class HubUnreachable(HubError):
    """Nobody answers as a hub does."""


class CacheFull(HubError):
    """The volume that the files go to is full."""

    code = ExitCode.DISK_FULL


@contextmanager
def asking(hub: str, repo: str, revision: str, *, has_token: bool) -> Iterator[None]:
    """Around every use of the hub: its client's errors become ours, with what to do."""
    try:
        yield
    except HfHubHTTPError as error:
        raise _refusal(error, hub, repo, revision, has_token=has_token) from error
    except (httpx2.HTTPError, httpx2.InvalidURL, FileMetadataError) as error:
        said = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise HubUnreachable(f"{hub} does not answer as a hub does ({said}); check HF_ENDPOINT and egress") from error
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise CacheFull(f"{repo}@{revision}: no room left for its files; make the volume larger") from error
        if error.errno is None:  # the client's own: a file ended early
            raise HubUnreachable(f"{hub}: {error}".partition("\n")[0]) from error
        raise


def _refusal(error: HfHubHTTPError, hub: str, repo: str, revision: str, *, has_token: bool) -> HubError:
    status, headers = error.response.status_code, error.response.headers
    if isinstance(error, GatedRepoError):
        who = "with the account of model.tokenSecretRef" if has_token else "and give its token in model.tokenSecretRef"
        return ModelGated(f"{repo} is gated (HTTP {status}): accept its terms at {hub}/{repo} {who}")
    if isinstance(error, RevisionNotFoundError):
        return RevisionNotFound(f"{repo} has no revision '{revision}' (HTTP {status}); correct model.revision")
    if status == 401 and has_token and headers.get("X-Error-Message", "").startswith(_BAD_TOKEN):
        return TokenInvalid(f"{hub} does not accept the token (HTTP 401); put a valid one into model.tokenSecretRef")
    if isinstance(error, RepositoryNotFoundError) or status in (401, 404):
        who = "of somebody who may see it" if has_token else "too, if it is private"
        remedy = f"correct model.uri, or give a token {who} in model.tokenSecretRef"
        return ModelNotFound(f"{repo} does not exist at {hub} for us (HTTP {status}); {remedy}")
    if status == 403:
        return TokenInvalid(f"{hub} refuses {repo} (HTTP 403): {_words(error)}; the token needs the right to read it")
    if status == 429:
        seconds = headers.get("Retry-After", "").strip()
        is_number = seconds.isdecimal() and len(seconds) <= MAX_DIGITS
        return HubThrottled(f"{hub} throttles us (HTTP 429)", int(seconds) if is_number else None)
    return HubUnreachable(f"{hub} fails (HTTP {status}): {_words(error)}")


def _words(error: HfHubHTTPError) -> str:
    return (error.server_message or error.response.headers.get("X-Error-Message", "") or "no word")[:200]
