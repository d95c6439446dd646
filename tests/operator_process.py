"""The real operator as a process, under exactly the role it ships with, against a real API server."""

import json
import os
import signal
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from e2e.cluster.access import ApiAccess
from e2e.installation.quiescence import moved_in_resyncs
from operator_forks import ROOT, OperatorForks, OperatorProcess
from tidegate_operator.errors import NotFound
from tidegate_operator.kube import ApiServer
from tidegate_operator.rbac import CLUSTER_RULES, ELECTION_RULES, NAMESPACED_RULES, Rule, manifest
from tidegate_operator.report.events import CONTROLLER
from tidegate_operator.resources import CHILDREN, EVENT, POD, POOL, Resource, resource_of
from waiting import eventually

CRD_FILE = ROOT / "crds" / "inferencepools.tidegate.dev.yaml"
NAME = "tidegate-operator"
WATCHED_KINDS = ",".join(each.plural for each in (POOL, *CHILDREN, POD, EVENT))
_RESOURCES = {
    spelling: each
    for each in (POOL, *CHILDREN, POD, EVENT)
    for spelling in (each.plural, f"{each.plural}.{each.group}", each.kind.lower())
}


@dataclass
class OperatorUnderTest:
    """Start and stop it as often as the test needs."""

    access: ApiAccess
    forks: OperatorForks
    namespace: str
    folder: Path
    kubeconfig: Path
    settings: dict[str, str]
    port: int = 0
    process: OperatorProcess | None = None
    client: ApiServer = field(init=False)
    _log: Path = field(init=False)

    def __post_init__(self) -> None:
        self._log = self.folder / "operator.log"
        self.client = ApiServer.connect(str(self.access.kubeconfig))  # the administrator's

    def start(self) -> None:
        """Until everything there is has been listed and is watched."""
        self.launch()
        eventually(self.is_ready, timeout_seconds=90, what=f"the operator is ready; its log: {self._log}")

    def launch(self) -> None:
        self.port = _free_port()
        environment = {"PATH": os.environ["PATH"], "TIDEGATE_PORT": str(self.port), **self.settings}
        self.process = self.forks.start(["--kubeconfig", str(self.kubeconfig)], environment, self._log)

    def stop(self, signum: int = signal.SIGTERM) -> int:
        """Exit status."""
        assert self.process is not None
        self.process.send_signal(signum)
        status = self.process.wait(20)
        self.process = None
        return status

    def end(self) -> None:
        """At the end of a test, however it went."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(10)

    def is_ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log()
        try:
            return self._get("/readyz") == "ok"
        except OSError:
            return False

    def log(self) -> str:
        return self._log.read_text()

    def num_reconciles(self) -> float:
        return self.metric("tidegate_operator_reconcile_total")

    def metric(self, start: str) -> float:
        """Sum of the samples whose line starts so."""
        return sum(self._samples(start))

    def watch_ages(self) -> list[float]:
        """Seconds since anything was heard of a kind, of each."""
        return self._samples("tidegate_operator_watch_age_seconds{")

    def _samples(self, start: str) -> list[float]:
        lines = self._get("/metrics").splitlines()
        return [float(line.rpartition(" ")[2]) for line in lines if line.startswith(start)]

    def resident_bytes(self) -> int:
        assert self.process is not None
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))) * 1024

    def _get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=2) as answer:
            return str(answer.read().decode())

    def get(self, kinds: str, name: str = "", selector: str = "") -> Any:
        """One object, or the items of a list; kinds as kubectl spells them, several with commas."""
        found = [self._read(_RESOURCES[kind], name, selector) for kind in kinds.split(",")]
        return found[0] if name else [item for items in found for item in items]

    def engine_pods(self) -> Any:
        """Without the inspection's pod, which the garbage collector takes whenever it likes."""
        return self.get("pods", selector="tidegate.dev/role=engine")

    def exists(self, kind: str, name: str) -> bool:
        try:
            return bool(self.get(kind, name))
        except NotFound:
            return False

    def _read(self, resource: Resource, name: str, selector: str) -> Any:
        """By the client in this process: polling with kubectl would keep a small machine busy with nothing else."""
        query = {"labelSelector": selector} if selector else {}
        path = resource.path(self.namespace, name or None)
        answer = self.client._request("GET", path, query, None, "application/json")
        kind = {"apiVersion": resource.api_version, "kind": resource.kind}
        return answer if name else [{**kind, **item} for item in answer["items"]]

    def apply(self, manifest: dict[str, Any]) -> None:
        """As `kubectl apply --server-side --force-conflicts` of a user, of a manifest or a List of them."""
        for each in manifest["items"] if manifest["kind"] == "List" else (manifest,):
            path = resource_of(each).path(self.namespace, each["metadata"]["name"])
            query = {"fieldManager": "user", "force": "true", "fieldValidation": "Strict"}
            self.client._request("PATCH", path, query, each, "application/apply-patch+yaml")

    def pool(self, name: str = "chat") -> Any:
        return self.get("inferencepools.tidegate.dev", name)

    def condition(self, kind: str, name: str = "chat") -> dict[str, Any]:
        conditions = self.pool(name).get("status", {}).get("conditions", [])
        return next((each for each in conditions if each["type"] == kind), {})

    def is_condition(self, kind: str, status: str, name: str = "chat") -> bool:
        return self.condition(kind, name).get("status") == status

    def is_current(self, name: str = "chat") -> bool:
        """Its status is that of the spec it has now: a Ready may be from before."""
        pool = self.pool(name)
        return bool(pool.get("status", {}).get("observedGeneration") == pool["metadata"]["generation"])

    def versions(self, kinds: str = WATCHED_KINDS) -> dict[str, str]:
        """resourceVersion of everything in the namespace that the operator could touch."""
        items = [item for item in self.get(kinds) if item.get("reportingController", CONTROLLER) == CONTROLLER]
        return {f"{item['kind']}/{item['metadata']['name']}": item["metadata"]["resourceVersion"] for item in items}

    def assert_quiescent(self, kinds: str = WATCHED_KINDS) -> None:
        """Forced resyncs write nothing: whatever the scenario was, it is over."""
        num_pools = len(self.get("inferencepools"))
        moved = moved_in_resyncs(lambda: self.versions(kinds), self.num_reconciles, num_pools=num_pools)
        assert not moved, f"moves at every resync: {sorted(moved)}\n{self.log()[-3000:]}"


@contextmanager
def operator_process(
    access: ApiAccess, forks: OperatorForks, namespace: str, folder: Path, token: str, *, is_cluster_wide: bool = False
) -> Iterator[OperatorUnderTest]:
    """Not started yet; ended at the end, however the test goes."""
    token_file = folder / "drain-token"
    token_file.write_text(token)
    operator = OperatorUnderTest(
        access,
        forks,
        namespace,
        folder,
        _as_cluster_operator(access, namespace) if is_cluster_wide else _as_operator(access, namespace),
        {
            "TIDEGATE_ENGINE__IMAGE": "localhost/engine:test",
            "TIDEGATE_ENGINE__RUNNER": "sim",
            "TIDEGATE_NAMESPACES": json.dumps([] if is_cluster_wide else [namespace]),
            "TIDEGATE_DRAIN_TOKEN_FILE": str(token_file),
            "TIDEGATE_RECONCILE__RESYNC_SECONDS": "1",
            "TIDEGATE_SCRAPE__INTERVAL_SECONDS": "0.5",
            "TIDEGATE_SCRAPE__IDLE_INTERVAL_SECONDS": "0.5",
        },
    )
    try:
        yield operator
    finally:
        operator.client.close()
        operator.end()


def _as_operator(access: ApiAccess, namespace: str) -> Path:
    """A kubeconfig with the shipped role of one namespace and nothing more."""
    _grant(access, "Role", NAME, (*NAMESPACED_RULES, *ELECTION_RULES), namespace, scope=f"/namespaces/{namespace}")
    return access.service_account_kubeconfig(NAME, namespace)


def _as_cluster_operator(access: ApiAccess, namespace: str) -> Path:
    """A kubeconfig with the shipped role of a whole cluster."""
    _grant(access, "ClusterRole", f"{NAME}-{namespace}", (*NAMESPACED_RULES, *CLUSTER_RULES), namespace, scope="")
    return access.service_account_kubeconfig(NAME, namespace)


def _grant(access: ApiAccess, kind: str, name: str, rules: tuple[Rule, ...], namespace: str, *, scope: str) -> None:
    """A role to a new ServiceAccount of the namespace."""
    group, metadata = "rbac.authorization.k8s.io", {"metadata": {"name": name}}
    subject = {"kind": "ServiceAccount", "name": NAME, "namespace": namespace}
    reference = {"apiGroup": group, "kind": kind, "name": name}
    root, create = f"/apis/{group}/v1{scope}", access.requests.create
    create(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": NAME}})
    create(f"{root}/{kind.lower()}s", {**metadata, "rules": manifest(rules)})
    create(f"{root}/{kind.lower()}bindings", {**metadata, "subjects": [subject], "roleRef": reference})


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
