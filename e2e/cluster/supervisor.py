"""The supervisor of one cluster: a process that starts it, outlives nobody and cleans up after it.

    owner (test process) --lifeline--> supervisor --> control plane           (alone, on the loopback)
                                       supervisor --> unshare --> pid 1 (init.py) --> control plane, nodes

`python -m e2e.cluster.supervisor FOLDER` reads `cluster.json` there. It holds the slot's lock (an inherited
descriptor), sees to it that `ready` or `failed` appears, waits until the lifeline on its stdin is cut (SIGTERM where
detached), and removes everything. Should it be killed itself, the kernel kills what it started and the next owner of
the slot removes what lies around.
"""

import os
import signal
import sys
import traceback
from contextlib import ExitStack
from pathlib import Path

from e2e.cluster.components import Components
from e2e.cluster.control_plane import start_control_plane
from e2e.cluster.errors import ClusterError
from e2e.cluster.lifeline import exit_on_termination, ignore_termination, wait_until_cut
from e2e.cluster.namespaces import link_pid_1, start_pid_1
from e2e.cluster.remains import remove_remains
from e2e.cluster.spec import ClusterSpec


def main(folder: Path) -> None:
    exit_on_termination()
    spec = ClusterSpec.read(folder)
    spec.supervisor_pid_file.write_text(str(os.getpid()))
    with ExitStack() as at_end:
        at_end.callback(remove_remains, spec.folder, spec.network)
        try:
            _start(spec, at_end)
        except (ClusterError, OSError):
            spec.failure_file.write_text(traceback.format_exc())  # the owner reads it, then lets go
        at_end.callback(ignore_termination)  # runs first: a second signal shall not stop the removal half-way
        if spec.is_detached:
            signal.pause()
        else:
            wait_until_cut(sys.stdin.fileno())


def _start(spec: ClusterSpec, at_end: ExitStack) -> None:
    if spec.network:
        process = start_pid_1(spec)
        at_end.callback(process.wait)
        at_end.callback(process.kill)
        link_pid_1(spec, process)
    else:
        components = Components(spec.folder, spec.logs)
        at_end.callback(components.stop)
        start_control_plane(spec, components)
        spec.ready_file.touch()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
