"""The owner of a cluster, for tests that kill one: starts it, prints its folder, then does nothing."""

import signal

from e2e.cluster.cluster import Cluster
from e2e.cluster.images import ImageBuilder
from e2e.cluster.node import NodeSpec

if __name__ == "__main__":
    owned = Cluster.start([NodeSpec()], [ImageBuilder.default().python])
    print(owned.spec.folder, flush=True)
    signal.pause()
