"""The key file of a process, read again when its content changes: a rotated Secret needs no restart.

A Secret's mount is swapped by a symlink and an editor may write in place, so the content is compared, not a timestamp.
The process asks `keys` for every request; only the watching task reads the file, and not on the event loop.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tidegate_core.errors import BadLaunch
from tidegate_engine.server.keys import ApiKeys, BadKeys

logger = logging.getLogger(__name__)

CHECK_SECONDS = 2.0
MAX_FILE_BYTES = 2**20  # more than a Secret can hold


class KeyFile:
    """Keeps the last good keys; a file that has become unusable is told in the log and shows in `fault`."""

    def __init__(self, path: Path) -> None:
        """Raises BadLaunch if the file cannot be used: an engine must not start with nobody or everybody let in."""
        self.path = path
        self.fault: str | None = None
        self._content = b""
        try:
            self._content = self._read()
            self.keys = _parsed(self._content)
        except (OSError, BadKeys) as error:
            raise BadLaunch(f"--api-keys-file {path} cannot be used: {error}") from error

    async def watch(self, check_seconds: float) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(check_seconds)
            await self.check()

    async def check(self) -> None:
        """Takes over what the file says now, if it changed and can be used."""
        try:
            content = await asyncio.to_thread(self._read)
            if content == self._content and self.fault is None:
                return
            self.keys = _parsed(content)
        except (OSError, BadKeys) as error:
            self._broken(str(error))
            return
        self._content = content
        self.fault = None
        logger.warning("%s: %d API keys are in force now", self.path, len(self.keys.callers))

    def _broken(self, fault: str) -> None:
        if fault != self.fault:
            logger.error("%s cannot be used, the keys known before stay in force: %s", self.path, fault)
        self.fault = fault

    def _read(self) -> bytes:
        with self.path.open("rb") as file:
            return file.read(MAX_FILE_BYTES + 1)


@asynccontextmanager
async def watched(file: KeyFile | None, check_seconds: float = CHECK_SECONDS) -> AsyncIterator[None]:
    """Watches the file, if there is one, for as long as the block runs."""
    watching = None if file is None else asyncio.create_task(file.watch(check_seconds))
    try:
        yield
    finally:
        if watching is not None:
            watching.cancel()


def _parsed(content: bytes) -> ApiKeys:
    if len(content) > MAX_FILE_BYTES:
        raise BadKeys(f"it is larger than {MAX_FILE_BYTES} bytes")
    try:
        return ApiKeys.parse(content.decode())
    except UnicodeDecodeError as error:
        raise BadKeys("it is not text in UTF-8") from error
