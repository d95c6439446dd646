"""The tokens with which this operator drains engines: today's for new pods, older ones until their pods are gone.

They lie side by side in a mounted Secret: `token`, and others whose names begin with it. Files are read when a token
is needed, so a rotation needs no restart. A pod says in its own arguments, by SHA-256, which tokens it accepts.
"""

import logging
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

from tidegate_operator.settings import BadSettings

_log = logging.getLogger(__name__)


class DrainTokens:
    """Of one file and its neighbours whose names begin with its name."""

    def __init__(self, file: Path) -> None:
        """Raises BadSettings naming the file."""
        self._file = file
        self._last = _read(file)

    def current_sha256(self) -> str:
        """What new pods are told; the last one known where the file cannot be read any more."""
        try:
            self._last = _read(self._file)
        except BadSettings as error:
            _log.warning("%s; going on with the token known before", error)
        return digest(self._last)

    def accepted_by(self, digests: Iterable[str]) -> str | None:
        """The token that an engine with these arguments accepts; None where it is here no more."""
        tokens = {digest(token): token for token in self._all()}
        return next((tokens[each.lower()] for each in digests if each.lower() in tokens), None)

    def _all(self) -> Iterable[str]:
        yield self._last
        for path in sorted(self._file.parent.glob(f"{self._file.name}*")):
            try:
                yield _read(path)
            except BadSettings as error:  # removed meanwhile, or empty: not one to drain with
                _log.debug("%s", error)


def digest(token: str) -> str:
    """As in --drain-token-sha256."""
    return sha256(token.encode()).hexdigest()


def _read(file: Path) -> str:
    try:
        token = file.read_text().strip()
    except OSError as error:
        raise BadSettings(f"TIDEGATE_DRAIN_TOKEN_FILE: {error}; put a random token there") from error
    if not token:
        raise BadSettings(f"TIDEGATE_DRAIN_TOKEN_FILE: {file} is empty; put a random token there")
    return token
