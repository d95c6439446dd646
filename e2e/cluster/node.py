"""A node of a cluster: what it offers, its configuration files, and how its owner starts it.

A node is a mount namespace inside the cluster's namespaces with its own containerd and kubelet; node_init.py builds it.
Each node advertises the whole machine, so tests set requests instead of relying on a node's size.
"""

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from e2e.cluster import cgroups
from e2e.cluster.environment import clean_environment
from e2e.cluster.errors import ClusterFailed
from e2e.cluster.namespaces import enter
from e2e.cluster.paths import REPOSITORY
from e2e.cluster.requirements import CNI_FOLDER
from e2e.cluster.spec import ClusterSpec, Network

PAUSE_IMAGE = "localhost/pause:1"
START_SECONDS = 180.0


@dataclass(frozen=True)
class NodeSpec:
    """A node to be: `num_gpus` devices of nvidia.com/gpu that exist by name only, with the labels of NVIDIA's tools."""

    num_gpus: int = 0
    gpu_product: str = "NVIDIA-H100-80GB-HBM3"
    gpu_memory_mib: int = 81_559

    def labels(self) -> str:
        """For --node-labels."""
        if not self.num_gpus:
            return ""
        return (
            f"nvidia.com/gpu.count={self.num_gpus},nvidia.com/gpu.product={self.gpu_product},"
            f"nvidia.com/gpu.memory={self.gpu_memory_mib}"
        )


@dataclass(frozen=True)
class NodeFiles:
    """Paths of node `index`; all of them lie in the cluster's folder, whatever the node mounts elsewhere."""

    cluster: Path
    index: int

    @property
    def name(self) -> str:
        return f"node{self.index}"

    @property
    def folder(self) -> Path:
        return self.cluster / self.name

    @property
    def logs(self) -> Path:
        return self.cluster / "log" / self.name

    @property
    def containerd_socket(self) -> Path:
        return self.folder / "containerd.sock"

    @property
    def kubelet_root(self) -> Path:
        return Path("/var/lib/kubelet")  # as the node sees it: device plugins are looked for below this fixed path


def start_node(spec: ClusterSpec, index: int, node: NodeSpec) -> None:
    """Returns once its kubelet runs; it is Ready some seconds later. Raises ClusterFailed."""
    assert spec.network, "only clusters with nodes have a network"
    cgroups.create(f"{spec.network.label}/node{index}")
    module = ["-m", "e2e.cluster.node_init", str(spec.folder), str(index), json.dumps(asdict(node))]
    # nsenter leaves us in `/`, so the modules are found by PYTHONPATH.
    environment = clean_environment(os.environ) | {"PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        enter(spec, "unshare", "--mount", sys.executable, *module),
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=START_SECONDS,
        check=False,
    )
    if done.returncode:
        raise ClusterFailed(f"node{index} of {spec.name} did not start: {done.stderr.strip()}")


def load_images(files: NodeFiles, archive: Path) -> None:
    """Every image of an OCI archive into the node's containerd."""
    command = [
        "ctr",
        "--address",
        str(files.containerd_socket),
        "--namespace",
        "k8s.io",
        "images",
        "import",
        str(archive),
    ]
    environment = clean_environment(os.environ)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClusterFailed(f"{files.name} did not take the images of {archive}: {done.stderr.strip()}")


def cni_configuration(network: Network, files: NodeFiles) -> str:
    """A veth pair per pod and a route to it; addresses from the node's /24."""
    ranges = [[{"subnet": network.pods_of(files.index)}]]
    addresses = {
        "type": "host-local",
        "dataDir": str(files.folder / "ipam"),
        "ranges": ranges,
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    plugin = {"type": "ptp", "ipMasq": False, "ipam": addresses}
    return json.dumps({"cniVersion": "0.4.0", "name": "tidegate", "plugins": [plugin]})


def containerd_configuration(files: NodeFiles) -> str:
    runtime = 'plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc'
    return f"""\
version = 2
root = "{files.folder}/containerd"
state = "/run/containerd"
[grpc]
  address = "{files.containerd_socket}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{files.folder}/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  restrict_oom_score_adj = true # without CAP_SYS_RESOURCE a lower score is refused, and sandboxes die with it
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{CNI_FOLDER}"
    conf_dir = "{files.folder}/cni"
  [{runtime}]
    runtime_type = "io.containerd.runc.v2"
    [{runtime}.options]
      SystemdCgroup = false
"""


def kubelet_configuration(spec: ClusterSpec, files: NodeFiles) -> str:
    """JSON, which is YAML."""
    assert spec.network, "only clusters with nodes have a network"
    return json.dumps(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "failCgroupV1": False,
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{spec.network.label}/{files.name}",
            "failSwapOn": False,
            "containerRuntimeEndpoint": f"unix://{files.containerd_socket}",
            "address": spec.network.node(files.index),
            "port": 10250,
            "healthzPort": 0,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(spec.pki / "ca.crt")},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(spec.pki / f"{files.name}.crt"),
            "tlsPrivateKeyFile": str(spec.pki / f"{files.name}.key"),
            "syncFrequency": "5s",  # a changed Secret reaches running pods in seconds, not after a minute
            "nodeStatusUpdateFrequency": "1s",  # so that a device plugin's GPUs are seen at once, not after 10 s
            "nodeStatusReportFrequency": "5m",  # unchanged status is still written as rarely as usual
            "evictionHard": {
                "memory.available": "100Mi"
            },  # explicit: the defaults also look at a disk that is not ours
            "imageGCHighThresholdPercent": 100,  # never: there is nowhere to pull from again
            "imageGCLowThresholdPercent": 99,
            "podLogsDir": str(files.logs / "pods"),
            "volumePluginDir": str(files.folder / "volume-plugins"),
            "makeIPTablesUtilChains": False,
            "crashLoopBackOff": {"maxContainerRestartPeriod": "5s"},  # tests do not wait for minutes
        }
    )
