"""The operator installed from its chart as a pod of the cluster, as users install it."""

import json
from dataclasses import dataclass
from typing import Any

import httpx

from e2e.cluster.cluster import Cluster
from e2e.cluster.images import ImageBuilder
from e2e.cluster.volumes import environment_patch
from e2e.installation.chart import render_chart
from e2e.installation.polling import wait_for

NAMESPACE = "tidegate-system"
RELEASE = "tidegate"
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
READY_SECONDS = 90.0
RESYNC_SECONDS = 2.0  # a pool is looked at this often although nothing happened: what quiescence is tested with
ENGINE_CONTAINER = "engine"


@dataclass(frozen=True)
class Installation:
    """A running operator. Its image holds its own packages; engines mount theirs from the claim `venv`."""

    cluster: Cluster

    @classmethod
    def install(cls, cluster: Cluster, images: ImageBuilder, **engine: Any) -> "Installation":
        """`engine` adds to the chart's values of that name. Returns when the operator is ready."""
        operator_image, engine_image = (cluster.provide_image(image) for image in (images.operator, images.engine))
        repository, _, tag = operator_image.rpartition(":")
        values = {
            "image": {"repository": repository, "tag": tag},
            "engine": {"image": engine_image, "podTemplatePatch": environment_patch(ENGINE_CONTAINER), **engine},
            "reconcile": {"resyncSeconds": RESYNC_SECONDS},
            "scrape": {"intervalSeconds": 1, "idleIntervalSeconds": RESYNC_SECONDS},
        }
        cluster.create_namespace(NAMESPACE, RESTRICTED)
        manifests = render_chart(values, release=RELEASE, namespace=NAMESPACE)
        document = json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests})
        cluster.kubectl("apply", "--server-side", "--namespace", NAMESPACE, "-f", "-", input=document)
        cluster.kubectl("wait", "--for=condition=Established", "crd/inferencepools.tidegate.dev", "--timeout=30s")
        installation = cls(cluster)
        installation.wait_until_ready()
        return installation

    def wait_until_ready(self) -> None:
        self.cluster.kubectl("rollout", "status", f"deployment/{RELEASE}", "--namespace", NAMESPACE, "--timeout=90s")

    def restart(self) -> None:
        """Kills the operator without grace and waits for its successor."""
        before = self._pod()["metadata"]["uid"]
        self.cluster.kubectl(
            "delete", "pod", "--namespace", NAMESPACE, "--selector", self._selector, "--grace-period=0", "--force"
        )
        wait_for("another operator pod", lambda: self._is_successor(before), READY_SECONDS)
        self.wait_until_ready()

    def num_reconciles(self) -> float:
        """Reconciles of all pools since the operator started, whatever came of them."""
        lines = self._metrics().splitlines()
        return sum(
            float(line.rpartition(" ")[2]) for line in lines if line.startswith("tidegate_operator_reconcile_total")
        )

    def logs(self) -> str:
        return self.cluster.kubectl("logs", f"deployment/{RELEASE}", "--namespace", NAMESPACE)

    def _metrics(self) -> str:
        address = self._pod()["status"]["podIP"]
        answer = httpx.get(f"http://{address}:8080/metrics", timeout=5, trust_env=False)
        return answer.raise_for_status().text

    def _is_successor(self, uid: str) -> bool:
        pods = self._pods()
        return len(pods) == 1 and pods[0]["metadata"]["uid"] != uid

    def _pod(self) -> dict[str, Any]:
        (pod,) = self._pods()
        return pod

    def _pods(self) -> list[dict[str, Any]]:
        text = self.cluster.kubectl("get", "pods", "--namespace", NAMESPACE, "--selector", self._selector, "-o", "json")
        pods: list[dict[str, Any]] = json.loads(text)["items"]
        return pods

    @property
    def _selector(self) -> str:
        return f"app.kubernetes.io/instance={RELEASE}"
