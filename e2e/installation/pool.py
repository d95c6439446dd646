"""One InferencePool in a namespace that can run it: the model and the engine's packages as claims, the pool's state."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from e2e.cluster.cluster import Cluster
from e2e.cluster.paths import REPOSITORY
from e2e.installation.engines import EnginePod
from e2e.installation.polling import wait_for
from tests.real_model import gemma_gguf
from tidegate_core.telemetry import API_PORT
from tidegate_operator.resources import CHILDREN, POD, POOL, SERVICE, Resource

KIND = "inferencepools.tidegate.dev"
REPLICA_SET = Resource("apps", "v1", "replicasets", "ReplicaSet")
ENDPOINT_SLICE = Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice")
OWNED = (*CHILDREN, POD, REPLICA_SET, ENDPOINT_SLICE)  # by a pool or by what it owns


@dataclass(frozen=True)
class Pool:
    """What a test or the demo sees of a pool."""

    cluster: Cluster
    namespace: str
    name: str

    @classmethod
    def apply(cls, cluster: Cluster, namespace: str, manifest: str) -> "Pool":
        """`kubectl apply` of the YAML text."""
        cluster.kubectl("apply", "--namespace", namespace, "-f", "-", input=manifest)
        return cls(cluster, namespace, yaml.safe_load(manifest)["metadata"]["name"])

    def get(self) -> dict[str, Any]:
        return self.cluster.requests.get(POOL.path(self.namespace, self.name))

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.get().get("status", {})
        return found

    def condition(self, kind: str) -> dict[str, Any]:
        conditions = self.status().get("conditions", [])
        return next((each for each in conditions if each["type"] == kind), {})

    def wait_for_condition(self, kind: str, status: str = "True", *, timeout_seconds: float = 180.0) -> None:
        what = f"{self.name}: condition {kind}={status}"
        wait_for(what, lambda: self.condition(kind).get("status") == status, timeout_seconds)

    def wait_for_ready_replicas(self, number: int, *, timeout_seconds: float = 180.0) -> None:
        what = f"{self.name}: {number} ready replicas"
        wait_for(what, lambda: self.status().get("readyReplicas", 0) == number, timeout_seconds)

    def wait_for_reason(self, kind: str, reason: str, *, timeout_seconds: float = 60.0) -> str:
        """The condition's message once it gives that reason."""
        what = f"{self.name}: condition {kind} with reason {reason}"
        wait_for(what, lambda: self.condition(kind).get("reason") == reason, timeout_seconds)
        return str(self.condition(kind)["message"])

    def wait_for_measured_blocks(self) -> None:
        """Until the operator has asked an engine what it allocated."""
        wait_for("measured blocks", lambda: self.status()["sizing"].get("measuredKvBlocks"), 30)

    def wait_until_nothing_is_left(self, *, timeout_seconds: float = 90.0) -> None:
        """Until no object carries the deleted pool's label any more."""
        selector = f"tidegate.dev/pool={self.name}"

        def is_gone() -> bool:
            paths = (each.path(self.namespace) for each in OWNED)
            return not any(self.cluster.requests.get(path, labelSelector=selector)["items"] for path in paths)

        wait_for(f"the end of all that belonged to {self.name}", is_gone, timeout_seconds)

    def engines(self) -> list[EnginePod]:
        """Its engine pods, those that leave included."""
        selector = f"tidegate.dev/pool={self.name},tidegate.dev/role=engine"
        pods = self.cluster.requests.get(POD.path(self.namespace), labelSelector=selector)
        return [EnginePod.of(pod) for pod in pods["items"]]

    def patch(self, **spec: Any) -> None:
        """Replaces these parts of its spec, as a user's `kubectl patch` does."""
        document = json.dumps({"spec": spec})
        self.cluster.kubectl(
            "patch", KIND, self.name, "--namespace", self.namespace, "--type=merge", "--patch", document
        )

    def url(self) -> str:
        """Base URL of the OpenAI API through the Service, as this machine reaches it."""
        service = self.cluster.requests.get(SERVICE.path(self.namespace, self.name))
        return f"http://{service['spec']['clusterIP']}:{API_PORT}/v1"

    def scaling_history(self) -> list[dict[str, Any]]:
        """Newest first."""
        history: list[dict[str, Any]] = self.status().get("scalingHistory", [])
        return history

    def delete(self) -> None:
        self.cluster.kubectl("delete", KIND, self.name, "--namespace", self.namespace, "--timeout=60s")


def provide_model(cluster: Cluster, namespace: str) -> None:
    """The claims `models` (with the real Gemma 3 270M) and `venv` in an existing namespace."""
    provide_models(cluster, namespace, gemma_gguf().parent)


def provide_models(cluster: Cluster, namespace: str, folder: Path) -> None:
    """The claims `models` (that folder of this machine) and `venv` in an existing namespace."""
    cluster.provide_volumes(namespace, {"models": folder, "venv": REPOSITORY / ".venv"})
