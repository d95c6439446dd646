"""A cluster with nodes: real kubelets and containers in namespaces of their own, as root, ready in about 12 seconds.

Used by the e2e fixtures, by the demo and by `python -m e2e.cluster`. Several run side by side; each dies with its owner
unless it is detached, and nothing on the machine changes.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from e2e.cluster import detached
from e2e.cluster.access import NAMESPACES, ApiAccess
from e2e.cluster.binary import kube_binary
from e2e.cluster.errors import MissingTool
from e2e.cluster.images import BuiltImage
from e2e.cluster.links import MAX_NODES, is_routed
from e2e.cluster.loss import cut_power
from e2e.cluster.node import NodeFiles, NodeSpec, load_images, start_node
from e2e.cluster.owner import Supervision
from e2e.cluster.paths import run_home
from e2e.cluster.remains import remove_remains
from e2e.cluster.requirements import FOR_NODES, require
from e2e.cluster.slots import abandoned, claim
from e2e.cluster.spec import ClusterSpec, Network
from e2e.cluster.volumes import NAMESPACE_LABEL, HostVolume, manifests

KIND = "net"
NETWORKS = range(200, 250)  # 10.200.0.0/16 and so on
API_PORT = 6443
READY_TIMEOUT = "--timeout=110s"


class Cluster(ApiAccess):
    """A running cluster, as its owner holds it; without a supervision it is a detached one."""

    def __init__(self, spec: ClusterSpec, supervision: Supervision | None = None) -> None:
        super().__init__(spec)
        self._supervision = supervision

    @classmethod
    def start(cls, nodes: Sequence[NodeSpec], images: Sequence[BuiltImage], *, is_detached: bool = False) -> Self:
        """A cluster whose nodes are Ready and hold these images. Raises ClusterError."""
        if os.geteuid():
            raise MissingTool("a cluster with nodes needs root, for namespaces and mounts; run this as root")
        require(FOR_NODES)
        binary = kube_binary()
        sweep()
        free = (number for number in NETWORKS if not is_routed(Network(number)))
        slot = claim(run_home(), KIND, free)
        network = Network(slot.number)
        spec = ClusterSpec(
            slot.name, slot.folder, binary, network.api, API_PORT, network.services, network, is_detached=is_detached
        )
        supervision = Supervision.start(spec, slot)
        supervision.wait_until_ready()
        cluster = cls(spec, supervision)
        try:
            for image in images:
                cluster.provide_image(image)
            cluster.add_nodes(nodes)
        except BaseException:
            cluster.stop()
            raise
        return cluster

    @property
    def network(self) -> Network:
        assert self.spec.network, "a cluster with nodes has a network"
        return self.spec.network

    @property
    def num_nodes(self) -> int:
        return len(list(self.spec.folder.glob("node[0-9]")))

    def add_nodes(self, nodes: Sequence[NodeSpec]) -> None:
        """Returns once all of them are Ready and offer their GPUs."""
        first = self.num_nodes + 1
        assert first + len(nodes) - 1 <= MAX_NODES, f"a cluster has addresses for {MAX_NODES} nodes"
        for index, node in enumerate(nodes, first):
            start_node(self.spec, index, node)
        for index, node in enumerate(nodes, first):
            self._wait_for_node(f"node/node{index}", node)
        if nodes and first == 1:
            self.kubectl("wait", "--for=create", "serviceaccount/default", READY_TIMEOUT)

    def lose_node(self, index: int) -> None:
        """As by a power cut: its Node object stays and nothing says why it is silent."""
        cut_power(self.spec, NodeFiles(self.spec.folder, index))

    def provide_image(self, image: BuiltImage) -> str:
        """The image on every node there is now and on those to come; returns its name."""
        for archive in image.archives:
            if self._take_archive(archive):
                for index in range(1, self.num_nodes + 1):
                    load_images(NodeFiles(self.spec.folder, index), archive)
        return image.name

    def provide_volumes(self, namespace: str, folders: Mapping[str, Path]) -> None:
        """Folders of the machine as read-only claims: {claim name: folder}; mount them with `readOnly: true`."""
        volumes = [HostVolume(namespace, name, path.resolve(strict=True)) for name, path in folders.items()]
        self.kubectl("apply", "-f", "-", input=manifests(volumes))

    def delete_namespace(self, name: str) -> None:
        """With its volumes and without waiting."""
        self.requests.delete(f"{NAMESPACES}/{name}/pods", grace_seconds=1)
        self.requests.delete("/api/v1/persistentvolumes", labelSelector=f"{NAMESPACE_LABEL}={name}")
        super().delete_namespace(name)

    def stop(self) -> None:
        """Ends it and returns when nothing of it is left."""
        if self._supervision:
            self._supervision.stop()
        else:
            detached.end(self.spec)

    def _take_archive(self, archive: Path) -> bool:
        """Names the archive for nodes to come, after those it builds on; False where it is known already."""
        folder = self.spec.images
        known = sorted(folder.iterdir())
        if any(link.readlink() == archive for link in known):
            return False
        (folder / f"{len(known):02d}-{archive.name}").symlink_to(archive)
        return True

    def _wait_for_node(self, name: str, node: NodeSpec) -> None:
        self.kubectl("wait", "--for=create", name, READY_TIMEOUT)
        self.kubectl("wait", "--for=condition=Ready", name, READY_TIMEOUT)
        if node.num_gpus:
            offered = r"jsonpath={.status.allocatable.nvidia\.com/gpu}=" + str(node.num_gpus)
            self.kubectl("wait", f"--for={offered}", name, READY_TIMEOUT)


def sweep() -> None:
    """Removes what clusters left whose supervisor was killed."""
    for slot in abandoned(run_home(), KIND):
        remove_remains(slot.folder, Network(slot.number))
        slot.release()
