"""Slots: which clusters run side by side on this machine, and which folders a dead one left behind.

A slot is a folder `KIND-NUMBER` under the run home and a lock file beside it. Whoever holds the lock owns the folder;
the kernel drops the lock with the last process of the cluster's supervisor, however it ends. Lock files are never
removed: unlinking one races with the next opener.
"""

import fcntl
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.errors import NoFreeSlot


@dataclass(frozen=True)
class Slot:
    """A claimed slot; `lock` is a file descriptor to hand to the supervisor and then close."""

    kind: str
    number: int
    folder: Path
    lock: int

    @property
    def name(self) -> str:
        return self.folder.name

    def release(self) -> None:
        os.close(self.lock)


def claim(home: Path, kind: str, numbers: Iterable[int]) -> Slot:
    """The first slot that nobody holds; its folder may hold remains that the caller clears."""
    for number in numbers:
        if slot := _try(home, kind, number):
            return slot
    raise NoFreeSlot(
        f"every {kind} slot under {home} is taken; `python -m e2e.cluster list` names them, `down` ends one"
    )


def abandoned(home: Path, kind: str) -> list[Slot]:
    """Claims every slot of this kind whose cluster is dead but whose folder is still there."""
    folders = sorted(folder for folder in home.glob(f"{kind}-*") if folder.is_dir())
    slots = [_try(home, kind, int(folder.name.removeprefix(f"{kind}-"))) for folder in folders]
    return [slot for slot in slots if slot]


def is_held(folder: Path) -> bool:
    """Whether a supervisor, or an owner about to start one, holds the slot with this folder."""
    kind, _, number = folder.name.rpartition("-")
    if slot := _try(folder.parent, kind, int(number)):
        slot.release()
    return slot is None


def _try(home: Path, kind: str, number: int) -> Slot | None:
    folder = home / f"{kind}-{number}"
    lock = os.open(f"{folder}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return Slot(kind, number, folder, lock)
