"""The lifeline: a pipe whose one end the owner of a cluster holds and whose other end its supervisor reads.

End of file means that the owner let go or died, by whatever signal: then the cluster ends too.
"""

import ctypes
import os
import signal
from typing import NoReturn

PR_SET_PDEATHSIG = 1


class Lifeline:
    """The owner's side. Neither descriptor is inherited unless it is passed on explicitly."""

    def __init__(self) -> None:
        self.reader, self._writer = os.pipe()

    def close_reader(self) -> None:
        """Once the supervisor has it: the owner must not hold both ends."""
        os.close(self.reader)

    def cut(self) -> None:
        os.close(self._writer)


def wait_until_cut(reader: int) -> None:
    """The supervisor's side: returns at end of file."""
    while os.read(reader, 4096):
        pass


def exit_on_termination() -> None:
    """SIGTERM and SIGINT leave by SystemExit, so that `finally` blocks run."""

    def leave(number: int, _frame: object) -> NoReturn:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGINT, leave)


def ignore_termination() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def die_with_parent() -> None:
    """For preexec_fn: the kernel kills this process when its parent dies."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
