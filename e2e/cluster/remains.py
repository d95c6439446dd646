"""What a dead cluster leaves on the machine, removed: empty cgroups, perhaps its link, its folder.

Called by the supervisor at the end, and by whoever claims a slot whose supervisor was killed. Nothing of the cluster
runs any more then: the kernel took its processes, mounts and network with the namespaces.
"""

import shutil
from pathlib import Path

from e2e.cluster import cgroups
from e2e.cluster.errors import ClusterFailed
from e2e.cluster.links import unlink_machine
from e2e.cluster.mounts import is_mounted_below
from e2e.cluster.spec import Network


def remove_remains(folder: Path, network: Network | None) -> None:
    if network:
        cgroups.remove(network.label)
        unlink_machine(network)
    if is_mounted_below(folder):  # removing through a mount would remove what is mounted
        raise ClusterFailed(f"something is still mounted under {folder}: unmount it, then remove the folder")
    if folder.exists():
        (folder / "ready").unlink(missing_ok=True)  # first of all: nobody shall take it for a running one
        shutil.rmtree(folder)
