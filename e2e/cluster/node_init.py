"""Builds a node from inside its mount namespace: mounts, certificates, containerd, kubelet, device plugin; then exits.

`python -m e2e.cluster.node_init FOLDER INDEX NODE`, run by node.start_node() through nsenter and unshare. What it
starts is adopted by the cluster's pid 1.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from e2e.cluster import cgroups
from e2e.cluster.components import Command, Components, tail
from e2e.cluster.environment import clean_environment
from e2e.cluster.errors import ClusterFailed
from e2e.cluster.mounts import bind, overlay, tmpfs
from e2e.cluster.node import (
    NodeFiles,
    NodeSpec,
    cni_configuration,
    containerd_configuration,
    kubelet_configuration,
    load_images,
)
from e2e.cluster.pki import Authority, write_private
from e2e.cluster.spec import ClusterSpec

SOCKET_SECONDS = 60.0
POLL_SECONDS = 0.05


def main(folder: Path, index: int, node: NodeSpec) -> None:
    spec = ClusterSpec.read(folder)
    files = NodeFiles(folder, index)
    assert spec.network, "only clusters with nodes have a network"
    cgroups.enter(f"{spec.network.label}/control-plane")  # pods have the node's own group
    files.folder.mkdir()
    files.logs.mkdir()
    _mount(files)
    _configure(spec, files)
    components = Components(spec.folder, files.logs)
    _start_containerd(files)
    components.start(_kubelet(spec, files, node), outlive_parent=True)
    if node.num_gpus:
        plugin = Command("fake-gpu", (str(files.kubelet_root), str(node.num_gpus)))
        _wait_for(files.kubelet_root / "device-plugins" / "kubelet.sock", files.logs / "kubelet.log")
        components.start(plugin, outlive_parent=True)
    for archive in sorted(spec.images.iterdir()):  # while the kubelet registers
        load_images(files, archive)
    components.check()


def _mount(files: NodeFiles) -> None:
    """Own /run (shim sockets have fixed paths there), own writes below /var/lib, own kubelet root."""
    for name in ("upper", "work", "kubelet"):
        (files.folder / name).mkdir()
    tmpfs(Path("/run"))
    Path("/run/netns").mkdir()
    overlay(Path("/var/lib"), upper=files.folder / "upper", work=files.folder / "work")
    files.kubelet_root.mkdir(exist_ok=True)
    bind(files.folder / "kubelet", files.kubelet_root)


def _configure(spec: ClusterSpec, files: NodeFiles) -> None:
    assert spec.network, "only clusters with nodes have a network"
    authority = Authority(spec.pki)
    alternative_names = f"IP:{spec.network.node(files.index)},DNS:{files.name}"
    authority.issue(files.name, f"/O=system:nodes/CN=system:node:{files.name}", alternative_names)
    write_private(spec.kubeconfig(files.name), authority.kubeconfig(files.name, spec.url))
    (files.folder / "cni").mkdir()
    (files.folder / "cni" / "10-tidegate.conflist").write_text(cni_configuration(spec.network, files))
    (files.folder / "containerd.toml").write_text(containerd_configuration(files))
    (files.folder / "kubelet.json").write_text(kubelet_configuration(spec, files))


def _start_containerd(files: NodeFiles) -> None:
    with (files.logs / "containerd.log").open("ab") as log:
        subprocess.Popen(
            ["containerd", "--config", str(files.folder / "containerd.toml")],
            cwd=files.folder,
            env=clean_environment(os.environ),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    _wait_for(files.containerd_socket, files.logs / "containerd.log")


def _kubelet(spec: ClusterSpec, files: NodeFiles, node: NodeSpec) -> Command:
    assert spec.network, "only clusters with nodes have a network"
    return Command(
        "kubelet",
        (
            f"--config={files.folder / 'kubelet.json'}",
            f"--kubeconfig={spec.kubeconfig(files.name)}",
            f"--hostname-override={files.name}",
            f"--root-dir={files.kubelet_root}",
            f"--node-ip={spec.network.node(files.index)}",
            f"--node-labels={node.labels()}",
        ),
    )


def _wait_for(socket: Path, log: Path) -> None:
    deadline = time.monotonic() + SOCKET_SECONDS
    while not socket.is_socket():
        if time.monotonic() > deadline:
            raise ClusterFailed(f"{socket} did not appear in {SOCKET_SECONDS:.0f} s: {tail(log)}")
        time.sleep(POLL_SECONDS)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), NodeSpec(**json.loads(sys.argv[3])))
