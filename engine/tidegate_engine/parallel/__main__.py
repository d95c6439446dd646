"""`python -m tidegate_engine.parallel RANK SIZE CHANNEL LIFELINE`: the process of one device. Started by crew.py only.

Signals are for the first process, which drains: this one ends when that has, or when it fails itself.
"""

import logging
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection

from tidegate_checkpoint.errors import CheckpointError
from tidegate_core.errors import BadLaunch
from tidegate_core.termination import ExitCode
from tidegate_engine.parallel.crew import Failed
from tidegate_engine.parallel.share import Share
from tidegate_engine.process.container import share_cores
from tidegate_engine.process.exits import StartError, exit_of
from tidegate_engine.process.lifecycle import STOP_SIGNALS

CAUSE_FIRST_SECONDS = 0.5  # a collective that breaks under us says that somebody else is gone: that is to be told first


def main(rank: int, size: int, channel_number: int, lifeline: int) -> int:
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_first, args=(lifeline,), name="lifeline", daemon=True).start()
    logging.basicConfig(format=f"%(asctime)s %(levelname)s rank {rank} %(name)s: %(message)s")
    channel = Connection(channel_number)
    try:
        _follow(channel, Share(rank, size))
    except (EOFError, BrokenPipeError):
        return ExitCode.OK
    except Exception as error:  # noqa: BLE001 - the first process says what it means for all
        traceback.print_exc()
        time.sleep(CAUSE_FIRST_SECONDS)
        _send(channel, _failed(error))
        return exit_of(error).code
    return ExitCode.OK


def _follow(channel: Connection, share: Share) -> None:
    share_cores(os.environ)
    from tidegate_engine.parallel.follower import Follower

    follower = Follower(share)
    while True:
        command = pickle.loads(channel.recv_bytes())  # noqa: S301 - from our own parent, on a private pipe
        report = follower.obey(command)
        if report is not None:
            _send(channel, report)


def _send(channel: Connection, report: object) -> None:
    channel.send_bytes(pickle.dumps(report, pickle.HIGHEST_PROTOCOL))


def _failed(error: Exception) -> Failed:
    if isinstance(error, StartError | BadLaunch | CheckpointError | MemoryError):
        return Failed(type(error), str(error))
    return Failed(None, f"{type(error).__name__}: {error}")


def _end_with_the_first(lifeline: int) -> None:
    """Its end of the pipe is closed when it ends, however it does."""
    os.read(lifeline, 1)
    os._exit(ExitCode.OK)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
