"""Operators as forks of one process that has imported all of their modules: importing takes longer than most tests.

    test process ──requests, answers: lines of JSON──▶ this file as a program ──fork──▶ operator, operator, ...

Each has its own environment, log and end, as one that `python -m tidegate_operator` starts; scenarios on nodes start
that. All of them end with the program, and that with the test process, by whatever signal.
"""

import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from e2e.cluster.lifeline import die_with_parent

ROOT = Path(__file__).parent.parent
POLL_SECONDS = 0.01


class OperatorProcess:
    """What subprocess.Popen is for a child of ours."""

    def __init__(self, forks: "OperatorForks", pid: int) -> None:
        self._forks = forks
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit status, negative for a signal; None while it runs."""
        if self.returncode is None:
            self.returncode = self._forks.ask(pid=self.pid)
        return self.returncode

    def wait(self, timeout_seconds: float) -> int:
        end = time.monotonic() + timeout_seconds
        while (status := self.poll()) is None:
            if time.monotonic() > end:
                raise TimeoutError(f"operator {self.pid} had not ended after {timeout_seconds} s")
            time.sleep(POLL_SECONDS)
        return status

    def send_signal(self, signum: int) -> None:
        if self.poll() is None:  # a pid is its own until its end was asked for
            os.kill(self.pid, signum)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class OperatorForks:
    """The test's side."""

    def __init__(self, program: subprocess.Popen[str]) -> None:
        self._program = program

    def start(self, arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> OperatorProcess:
        log.touch()  # it is read before the child has opened it
        pid = self.ask(arguments=list(arguments), environment=dict(environment), log=str(log))
        assert pid is not None
        return OperatorProcess(self, pid)

    def ask(self, **request: Any) -> int | None:
        """A new operator's pid, or how that of a pid ended."""
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        print(json.dumps(request), file=self._program.stdin, flush=True)
        answer: int | None = json.loads(self._program.stdout.readline())
        return answer


@contextmanager
def operator_forks() -> Iterator[OperatorForks]:
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "operator", ROOT / "engine", ROOT))),
    }
    command = [sys.executable, "-P", __file__]  # -P: the operator shall not find modules of tests
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as program:
        yield OperatorForks(program)


class _Order(NamedTuple):
    arguments: list[str]
    environment: dict[str, str]
    log: str


def _serve() -> _Order | None:
    """The program's side. Returns an order in the child that is to carry it out, None at the end of requests."""
    for line in sys.stdin:
        request = json.loads(line)
        if "pid" in request:
            pid, status = os.waitpid(request["pid"], os.WNOHANG)
            print(json.dumps(os.waitstatus_to_exitcode(status) if pid else None), flush=True)
            continue
        pid = os.fork()
        if not pid:
            return _Order(**request)
        print(pid, flush=True)
    return None


def _become(order: _Order) -> None:
    """A process of its own, in all that a program can see of itself."""
    die_with_parent()
    os.environ.clear()
    os.environ.update(order.environment)
    sys.path[:] = [path for path in sys.path if path != str(ROOT)]
    log = os.open(order.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for target, source in enumerate((nothing, log, log)):
        os.dup2(source, target)


if __name__ == "__main__":
    from tidegate_operator.__main__ import main

    gc.freeze()  # what is here by now is shared with every fork
    if order := _serve():
        _become(order)
        sys.exit(main(order.arguments))
