"""What happens to a process as a whole: one JSON line on stdout per event, stop signals as awaitable facts.

Events are for machines (tests and the demo wait for `listening` and `ready`) and for people reading a pod's log.
"""

import asyncio
import json
import os
import signal
import sys
import time

from tidegate_core.termination import ExitCode

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def log_event(event: str, **facts: object) -> None:
    """One line: {"time": ..., "event": ..., facts}. Keys are camelCase, as on the wire."""
    line = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "event": event, **facts}
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def exit_on_signals() -> None:
    """Until StopSignals are installed, which takes seconds of imports on a small share of a core.

    The first process of a container ignores signals it has no handler for: a pod deleted meanwhile would load its model
    and serve until it is killed.
    """
    for number in STOP_SIGNALS:
        signal.signal(number, lambda *_: os._exit(ExitCode.OK))


class StopSignals:
    """SIGTERM and SIGINT: the first asks to stop in order, a second to stop waiting."""

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        self.insisted = asyncio.Event()

    def install(self) -> None:
        """In the running event loop."""
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, self._received)

    def _received(self) -> None:
        (self.insisted if self.requested.is_set() else self.requested).set()
