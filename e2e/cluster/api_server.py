"""A control plane alone: etcd, API server and controller manager on the loopback, as any user, in about 4 seconds.

For tests that need real API semantics but no pods. Several run side by side; each dies with its owner.
"""

import socket
from typing import Self

from e2e.cluster.access import ApiAccess
from e2e.cluster.binary import kube_binary
from e2e.cluster.owner import Supervision
from e2e.cluster.paths import run_home
from e2e.cluster.requirements import FOR_API_SERVER, require
from e2e.cluster.slots import claim
from e2e.cluster.spec import ClusterSpec

KIND = "api"
SLOTS = range(1, 100)
LOOPBACK = "127.0.0.1"
SERVICE_RANGE = "10.0.0.0/16"  # nothing routes it: there are no nodes; room for thousands of Services


class ApiServer(ApiAccess):
    """A running control plane without nodes."""

    def __init__(self, spec: ClusterSpec, supervision: Supervision) -> None:
        super().__init__(spec)
        self._supervision = supervision

    @classmethod
    def start(cls) -> Self:
        """Raises ClusterError where it does not come up."""
        require(FOR_API_SERVER)
        binary = kube_binary()
        slot = claim(run_home(), KIND, SLOTS)
        with _reserved_port() as reservation:
            port = reservation.getsockname()[1]
            spec = ClusterSpec(slot.name, slot.folder, binary, LOOPBACK, port, SERVICE_RANGE)
            supervision = Supervision.start(spec, slot, reservation.fileno())
        supervision.wait_until_ready()
        return cls(spec, supervision)

    def stop(self) -> None:
        self._supervision.stop()


def _reserved_port() -> socket.socket:
    """A bound socket that never listens: it keeps the port ours, and the API server binds beside it (SO_REUSEPORT)."""
    reservation = socket.socket()
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    reservation.bind((LOOPBACK, 0))
    return reservation
