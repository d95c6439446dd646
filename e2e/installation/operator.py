"""The operator installed from its chart as a pod of the cluster, as users install, upgrade and stop it."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from e2e.cluster.cluster import Cluster
from e2e.cluster.images import ImageBuilder
from e2e.cluster.volumes import environment_patch
from e2e.installation.chart import Manifest, render_chart
from e2e.installation.crds import wait_for_crds
from e2e.installation.namespaces import RESTRICTED
from e2e.installation.polling import wait_for
from e2e.installation.quiescence import moved_in_resyncs
from e2e.installation.versions import resource_versions
from tidegate_operator.resources import POD, POOL

NAMESPACE = "tidegate-system"
RELEASE = "tidegate"
READY_SECONDS = 90.0
RESYNC_SECONDS = 1.0  # a pool is looked at this often although nothing happened: what quiescence is tested with
ENGINE_CONTAINER = "engine"
PRICES = {"cpu": "0.05", "nvidia.com/gpu": "2.5"}  # of an hour


class Installation:
    """A running operator. Its image holds its own packages; engines mount theirs from the claim `venv`."""

    def __init__(self, cluster: Cluster, values: Manifest) -> None:
        self.cluster = cluster
        self._values = values
        self._engine: Manifest = {}

    @classmethod
    def install(cls, cluster: Cluster, images: ImageBuilder, **engine: Any) -> "Installation":
        """`engine` adds to the chart's values of that name. Returns when the operator is ready."""
        operator_image, engine_image = (cluster.provide_image(image) for image in (images.operator, images.engine))
        repository, _, tag = operator_image.rpartition(":")
        values = {
            "image": {"repository": repository, "tag": tag},
            "engine": {"image": engine_image, "podTemplatePatch": environment_patch(ENGINE_CONTAINER)},
            "reconcile": {"resyncSeconds": RESYNC_SECONDS},
            "scrape": {"intervalSeconds": 1, "idleIntervalSeconds": RESYNC_SECONDS},
            "prices": {"perHour": PRICES},
        }
        cluster.create_namespace(NAMESPACE, RESTRICTED)
        installation = cls(cluster, values)
        installation._apply(installation._render(engine))
        wait_for_crds(cluster)
        installation.wait_until_ready()
        return installation

    def upgrade(self, **engine: Any) -> None:
        """As `helm upgrade` with these engine values: running pools keep their templates, new ones take these."""
        if engine == self._engine:
            return
        manifests = self._render(engine)
        self._apply([each for each in manifests if each["kind"] != "Secret"])  # Helm keeps the first drain token
        self.wait_until_ready()

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

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """No operator at all inside the block."""
        self._scale(0)
        wait_for("the end of the operator's pod", lambda: not self._pods(), READY_SECONDS)
        try:
            yield
        finally:
            self._scale(1)
            self.wait_until_ready()

    @contextmanager
    def uninstalled(self) -> Iterator[None]:
        """As `helm uninstall` leaves a cluster: what the chart marks as kept stays, the CRD for one."""
        manifests = self._render(self._engine)
        gone = _listed([each for each in manifests if not _is_kept(each)])
        self.cluster.kubectl(
            "delete", "--namespace", NAMESPACE, "--ignore-not-found", "--timeout=60s", "-f", "-", input=gone
        )
        wait_for("the end of the operator's pod", lambda: not self._pods(), READY_SECONDS)
        try:
            yield
        finally:
            self._apply(manifests)
            self.wait_until_ready()

    def moved_in_resyncs(self, namespace: str) -> set[str]:
        """What the operator writes although nothing happens; see quiescence.py."""
        pools = self.cluster.requests.get(POOL.path(None))["items"]
        return moved_in_resyncs(
            lambda: resource_versions(self.cluster, namespace), self.num_reconciles, num_pools=len(pools)
        )

    def assert_quiescent(self, namespace: str) -> None:
        """Whatever the scenario was, it is over: resyncs write nothing."""
        moved = self.moved_in_resyncs(namespace)
        assert not moved, f"moves at every resync: {sorted(moved)}"

    def num_reconciles(self) -> float:
        """Reconciles of all pools since the operator started, whatever came of them."""
        lines = self._metrics().splitlines()
        return sum(
            float(line.rpartition(" ")[2]) for line in lines if line.startswith("tidegate_operator_reconcile_total")
        )

    def logs(self) -> str:
        return self.cluster.kubectl("logs", f"deployment/{RELEASE}", "--namespace", NAMESPACE)

    def _render(self, engine: Manifest) -> list[Manifest]:
        self._engine = engine
        values = self._values | {"engine": self._values["engine"] | engine}
        return render_chart(values, release=RELEASE, namespace=NAMESPACE)

    def _apply(self, manifests: list[Manifest]) -> None:
        self.cluster.kubectl("apply", "--server-side", "--namespace", NAMESPACE, "-f", "-", input=_listed(manifests))

    def _scale(self, num_replicas: int) -> None:
        self.cluster.kubectl("scale", f"deployment/{RELEASE}", f"--replicas={num_replicas}", "--namespace", NAMESPACE)

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
        listed = self.cluster.requests.get(POD.path(NAMESPACE), labelSelector=self._selector)
        pods: list[dict[str, Any]] = listed["items"]
        return pods

    @property
    def _selector(self) -> str:
        return f"app.kubernetes.io/instance={RELEASE}"


def _listed(manifests: list[Manifest]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests})


def _is_kept(manifest: Manifest) -> bool:
    annotations: Manifest = manifest["metadata"].get("annotations") or {}
    return annotations.get("helm.sh/resource-policy") == "keep"
