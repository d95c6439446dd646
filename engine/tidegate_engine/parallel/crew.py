"""The processes of all devices but the first: started, told what to do, watched. Made by serve.py, used by the leader.

    this process, rank 0                                        python -m tidegate_engine.parallel, rank 1 ...
    send ------------------------ channel ------------------->  command
    receive <---- thread of the rank --- channel -------------  report, or what went wrong
    its end ----------------------- lifeline ---------------->  ends at once

A lost process is a fault of the whole engine: the devices compute in step, and nobody can go on without the others.
Knows no torch: a process that cannot import it is a fault like any other.
"""

import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections import deque
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from tidegate_engine.errors import EngineFailed

END_SECONDS = 10.0
CAUSE_SECONDS = 3.0  # a process that dies in a step breaks the others' connections before anybody knows how it ended


class FollowerLost(EngineFailed):
    """A device's process has ended or failed; the engine goes with it."""


class Failed(NamedTuple):
    """A process's last report. `kind` is raised in its name where the operator of the engine can change something."""

    kind: type[Exception] | None
    message: str


class Follower(NamedTuple):
    rank: int
    process: subprocess.Popen[bytes]
    channel: Connection
    reports: deque[object]


class Crew:
    """Methods may be called by any thread, but commands by one at a time."""

    def __init__(self, size: int) -> None:
        """Starts a process for each device but the first."""
        self.size = size
        self._changed = threading.Condition()
        self._fault: Exception | None = None
        self._is_closing = False
        self._folder = tempfile.TemporaryDirectory(prefix="tidegate-devices-")
        self.rendezvous = Path(self._folder.name, "rendezvous")
        beyond, self._lifeline = os.pipe()
        self._followers = [_started(rank, size, beyond) for rank in range(1, size)]
        os.close(beyond)
        self._threads = [
            threading.Thread(target=self._watch, args=(follower,), name=f"rank {follower.rank}", daemon=True)
            for follower in self._followers
        ]
        for thread in self._threads:
            thread.start()

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(follower.process.pid for follower in self._followers)

    @property
    def fault(self) -> Exception | None:
        """Why the engine cannot go on."""
        return self._fault

    def check(self) -> None:
        """Raises the fault, if there is one."""
        if self._fault is not None:
            raise self._fault

    def send(self, command: object) -> None:
        """To all. Raises the fault where one is gone."""
        message = pickle.dumps(command, pickle.HIGHEST_PROTOCOL)
        try:
            for follower in self._followers:
                follower.channel.send_bytes(message)
        except OSError as error:
            raise self.failed(error) from error

    def receive(self) -> tuple[object, ...]:
        """A report of each, waited for. Raises the fault."""
        with self._changed:
            self._changed.wait_for(lambda: self._fault or all(follower.reports for follower in self._followers))
            self.check()
            return tuple(follower.reports.popleft() for follower in self._followers)

    def failed(self, error: Exception) -> Exception:
        """The fault that `error`, of what all do together, makes: another's if that is its cause."""
        with self._changed:
            self._changed.wait_for(lambda: self._fault, CAUSE_SECONDS)
        if self._fault is None:
            self._end(EngineFailed(f"rank 0 of {self.size} failed where all compute together: {_told(error)}"))
        assert self._fault is not None
        return self._fault

    def close(self) -> None:
        """Ends them all."""
        self._is_closing = True
        os.close(self._lifeline)
        for follower in self._followers:
            try:
                follower.process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                follower.process.kill()
        for thread in self._threads:
            thread.join()
        for follower in self._followers:
            follower.channel.close()
        self._folder.cleanup()

    def _watch(self, follower: Follower) -> None:
        try:
            while True:
                report = pickle.loads(follower.channel.recv_bytes())  # noqa: S301 - our own child's, on a private pipe
                if isinstance(report, Failed):
                    self._end(self._fault_of(follower.rank, report))
                with self._changed:
                    follower.reports.append(report)
                    self._changed.notify_all()
        except (EOFError, OSError):
            code = follower.process.wait()
            self._end(FollowerLost(f"rank {follower.rank} of {self.size} {_ending(code)}, and the engine with it"))

    def _fault_of(self, rank: int, failed: Failed) -> Exception:
        if failed.kind is not None:
            return failed.kind(f"rank {rank}: {failed.message}")
        return FollowerLost(f"rank {rank} of {self.size} failed, and the engine with it: {failed.message}")

    def _end(self, fault: Exception) -> None:
        with self._changed:
            if self._fault is None and not self._is_closing:
                self._fault = fault
            self._changed.notify_all()


def _started(rank: int, size: int, lifeline: int) -> Follower:
    """In a session of its own, so that a terminal's interrupt is the first process's to handle.

    It finds modules where this process does, and not first (-P) in whatever folder the engine was started in.
    """
    ours, theirs = socket.socketpair()
    numbers = map(str, (rank, size, theirs.fileno(), lifeline))
    process = subprocess.Popen(  # noqa: S603 - this interpreter, numbers of our own
        [sys.executable, "-P", "-m", "tidegate_engine.parallel", *numbers],
        pass_fds=(theirs.fileno(), lifeline),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        start_new_session=True,
    )
    theirs.close()
    return Follower(rank, process, Connection(ours.detach()), deque())


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    name = signal.Signals(-code).name
    return f"was ended by {name}" + (", as by a system that runs out of memory" if name == "SIGKILL" else "")


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
