"""What one cluster is, decided by its owner before anything starts and read by each of its processes.

The owner writes it to `cluster.json` in the cluster's folder; the supervisor, pid 1 and the nodes take it from there.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Network:
    """The /16 of a cluster with nodes: 10.NUMBER."""

    number: int

    def address(self, rest: str) -> str:
        return f"10.{self.number}.{rest}"

    @property
    def api(self) -> str:
        """The namespace's own address, on the bridge: control plane and way in."""
        return self.address("0.1")

    @property
    def host(self) -> str:
        """The machine as pods see it: a test process that listens here is reachable from pods."""
        return self.address("0.254")

    def node(self, index: int) -> str:
        return self.address(f"0.{10 + index}")

    def pods_of(self, index: int) -> str:
        return self.address(f"{index}.0/24")

    @property
    def services(self) -> str:
        return self.address("128.0/17")

    @property
    def label(self) -> str:
        """Names the cluster's cgroup and its link on the machine (which may have 15 characters)."""
        return f"tg-{self.number}"


@dataclass(frozen=True)
class ClusterSpec:
    """One cluster: `network` is None for a control plane alone, which listens on the loopback."""

    name: str
    folder: Path
    binary: Path
    api_host: str
    api_port: int
    service_range: str
    network: Network | None = None
    is_detached: bool = False  # True: lives until `down`; False: until its owner closes the lifeline or dies

    @property
    def url(self) -> str:
        return f"https://{self.api_host}:{self.api_port}"

    @property
    def pki(self) -> Path:
        return self.folder / "pki"

    @property
    def logs(self) -> Path:
        return self.folder / "log"

    @property
    def images(self) -> Path:
        """Links to the archives that each node loads, in the order of their names."""
        return self.folder / "images"

    def kubeconfig(self, user: str) -> Path:
        return self.folder / f"{user}.kubeconfig"

    def write(self) -> None:
        facts = asdict(self) | {"folder": str(self.folder), "binary": str(self.binary)}
        (self.folder / "cluster.json").write_text(json.dumps(facts))

    @classmethod
    def read(cls, folder: Path) -> "ClusterSpec":
        facts = json.loads((folder / "cluster.json").read_text())
        network = Network(**facts.pop("network")) if facts["network"] else facts.pop("network")
        return cls(**facts | {"folder": Path(facts["folder"]), "binary": Path(facts["binary"]), "network": network})

    # How the processes of one cluster tell each other how far they are:

    @property
    def ready_file(self) -> Path:
        return self.folder / "ready"

    @property
    def failure_file(self) -> Path:
        return self.folder / "failed"

    @property
    def network_ready_file(self) -> Path:
        return self.folder / "network-ready"

    @property
    def pid_file(self) -> Path:
        """Pid of the namespaces' pid 1 as the machine numbers it."""
        return self.folder / "init.pid"

    @property
    def supervisor_pid_file(self) -> Path:
        return self.folder / "supervisor.pid"
