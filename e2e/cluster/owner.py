"""The owner's side of a cluster: prepares a slot's folder, starts the supervisor there, ends it.

Used by ApiServer and Cluster; the test process is the owner, or the command line where a cluster is detached.
"""

import os
import subprocess
import sys
import time

from e2e.cluster.components import link_components, tail
from e2e.cluster.environment import clean_environment
from e2e.cluster.errors import ClusterFailed
from e2e.cluster.lifeline import Lifeline
from e2e.cluster.paths import REPOSITORY
from e2e.cluster.remains import remove_remains
from e2e.cluster.slots import Slot
from e2e.cluster.spec import ClusterSpec

START_SECONDS = 150.0  # 4 are usual; a machine under full load takes its time
STOP_SECONDS = 120.0
POLL_SECONDS = 0.02


class Supervision:
    """A running supervisor as its owner sees it."""

    def __init__(self, spec: ClusterSpec, process: subprocess.Popen[bytes], lifeline: Lifeline) -> None:
        self._spec = spec
        self._process = process
        self._lifeline = lifeline

    @classmethod
    def start(cls, spec: ClusterSpec, slot: Slot, *reserved: int) -> "Supervision":
        """Hands the slot, and the `reserved` descriptors, over to a new supervisor; wait_until_ready() comes next."""
        remove_remains(spec.folder, spec.network)
        spec.logs.mkdir(parents=True)
        spec.images.mkdir()
        spec.write()
        link_components(spec.binary, spec.folder)
        lifeline = Lifeline()
        with (spec.logs / "supervisor.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "e2e.cluster.supervisor", str(spec.folder)],
                cwd=REPOSITORY,
                env=clean_environment(os.environ),
                stdin=subprocess.DEVNULL if spec.is_detached else lifeline.reader,
                stdout=log,
                stderr=log,
                pass_fds=(slot.lock, *reserved),
                start_new_session=True,  # an interrupt at the terminal is for the owner, who ends the cluster in order
            )
        lifeline.close_reader()
        slot.release()
        return cls(spec, process, lifeline)

    def wait_until_ready(self) -> None:
        """Raises ClusterFailed with what the supervisor wrote; the cluster is gone then."""
        deadline = time.monotonic() + START_SECONDS
        while not self._spec.ready_file.exists():
            fault = self._fault(deadline)
            if fault:
                self.stop()
                raise ClusterFailed(f"{self._spec.name} did not come up: {fault}")
            time.sleep(POLL_SECONDS)

    def stop(self) -> None:
        """Returns when nothing of the cluster is left."""
        self._lifeline.cut()
        if self._spec.is_detached:
            self._process.terminate()
        self._process.wait(STOP_SECONDS)

    def _fault(self, deadline: float) -> str:
        if self._spec.failure_file.exists():
            return self._spec.failure_file.read_text()
        if self._process.poll() is not None:
            return f"its supervisor ended with {self._process.returncode}: {tail(self._spec.logs / 'supervisor.log')}"
        if time.monotonic() > deadline:
            return f"not ready in {START_SECONDS:.0f} s: {tail(self._spec.logs / 'supervisor.log')}"
        return ""
