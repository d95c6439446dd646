"""The operator with a thousand pools on a real API server: `python -m benchmarks operator`, about ten minutes.

There are no nodes: pods exist, and this process says of each what a kubelet would. Models count as inspected, engines
answer `GET /load` from one port. Measured are the operator's own process and the wall clock; API server, controllers
and this process share the same cores, so wall times are upper bounds.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from aiohttp import web
from kubernetes import client, config

from e2e.cluster.api_server import ApiServer as Cluster
from tidegate_core.inspected import Inspected
from tidegate_core.shape import AttentionGroup, LayerKind, ModelShape, TpRule, WeightGroup, WeightRole
from tidegate_core.telemetry import ADMIN_PORT, EngineSizing, LoadReport, StepFit
from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.decisions.inspection import model_revision
from tidegate_operator.kube import ApiServer
from tidegate_operator.labels import POOL_LABEL
from tidegate_operator.resources import POD, POOL, Manifest

ROOT = Path(__file__).parent.parent
CRD_FILE = ROOT / "crds" / "inferencepools.tidegate.dev.yaml"
ENGINES_IP = "127.77.0.1"
NUM_NAMESPACES = 20
NUM_WORKERS = 4  # pools that an operator works on at once, when it has something to do
REPORT = LoadReport(
    boot_id="boot", arrivals=0, rejects=0, completions=0, preemptions=0, running=0, waiting=0, kv_blocks_used=0,
    kv_blocks_total=500, eta_seconds=0.0, draining=False, step_fit=StepFit(),
    sizing=EngineSizing(
        context=2048, slots=8, kv_blocks_total=500, block_size=16, kv_bytes=1, weight_bytes=1, resident_bytes=1
    ),
)  # fmt: skip

_WEIGHTS = 6_946_000_000
SHAPE = ModelShape(
    architecture="qwen3", num_parameters=_WEIGHTS, dtype="bf16", hidden_size=4096, intermediate_size=12_288,
    vocab_size=151_936, num_attention_heads=32, max_context=40_960, has_tied_embeddings=True,
    weights=(WeightGroup(WeightRole.LINEAR, TpRule.SPLIT, "bf16", _WEIGHTS, 2 * _WEIGHTS),),
    attention=(AttentionGroup(LayerKind.FULL, 36, 8, 128),), fingerprint="0" * 32,
)  # fmt: skip
POOL_MANIFEST = {
    "apiVersion": POOL.api_version, "kind": POOL.kind,
    "spec": {
        "model": {"uri": "pvc://models/qwen"}, "context": {"max": 4096, "min": 2048}, "accelerator": {"memory": "24Gi"},
    },
}  # fmt: skip
CLAIM: Any = {
    "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "models"},
    "spec": {"accessModes": ["ReadOnlyMany"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": ""},
}  # fmt: skip
CONTAINER = {"name": "engine", "image": "engine", "imageID": "", "restartCount": 0, "started": True}


class Usage(NamedTuple):
    """Of the operator's process, so far."""

    at: float
    cpu_seconds: float
    num_reconciles: float

    def percent_since(self, before: "Usage") -> float:
        """Of one core."""
        return 100 * (self.cpu_seconds - before.cpu_seconds) / (self.at - before.at)


class Operator:
    """The operator as a process, cluster-wide."""

    def __init__(self, kubeconfig: Path, folder: Path) -> None:
        (folder / "token").write_text("a token")
        self._environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": f"{ROOT / 'operator'}:{ROOT / 'engine'}",
            "TIDEGATE_ENGINE__IMAGE": "engine:1",
            "TIDEGATE_ENGINE__RUNNER": "sim",
            "TIDEGATE_DRAIN_TOKEN_FILE": str(folder / "token"),
            "TIDEGATE_PORT": "18080",
        }
        self._command = [sys.executable, "-m", "tidegate_operator", "--kubeconfig", str(kubeconfig)]
        self._log = folder / "operator.log"

    def start(self) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(self._command, env=self._environment, stdout=log, stderr=log)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(60)

    def usage(self) -> Usage:
        lines = self._metrics()
        reconciles = _sum(lines, "tidegate_operator_reconcile_total")
        return Usage(time.monotonic(), _sum(lines, "process_cpu_seconds_total"), reconciles)

    def metric(self, start: str) -> float:
        return _sum(self._metrics(), start)

    def _metrics(self) -> list[str]:
        try:
            with urllib.request.urlopen("http://127.0.0.1:18080/metrics", timeout=30) as answer:
                return str(answer.read().decode()).splitlines()
        except OSError:  # not up yet
            assert self.process.poll() is None, self._log.read_text()[-3000:]
            return []

    def resident_mib(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))) / 1024


def _sum(lines: Sequence[str], start: str) -> float:
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(start))


class World:
    """Pools, and a kubelet's words about their pods."""

    def __init__(self, cluster: Cluster, num_pools: int) -> None:
        configuration = client.Configuration()
        config.load_kube_config(str(cluster.admin_kubeconfig), client_configuration=configuration)  # type: ignore[no-untyped-call]
        self._core = client.CoreV1Api(client.ApiClient(configuration))
        self._custom = client.CustomObjectsApi(client.ApiClient(configuration))
        self._kube = ApiServer.connect(str(cluster.admin_kubeconfig))
        self._cluster = cluster
        self._num_pools = num_pools

    def create_pools(self) -> None:
        self._cluster.kubectl("apply", "--server-side", "-f", str(CRD_FILE))
        self._cluster.kubectl("wait", "--for=condition=Established", f"crd/{POOL.plural}.{POOL.group}", "--timeout=30s")
        for number in range(NUM_NAMESPACES):
            self._cluster.kubectl("create", "namespace", f"team-{number}")
            self._core.create_namespaced_persistent_volume_claim(f"team-{number}", CLAIM)
        self._parallel(self._create_pool, range(self._num_pools))

    def _create_pool(self, number: int) -> None:
        manifest = {**POOL_MANIFEST, "metadata": {"name": f"pool-{number}"}}
        namespace = f"team-{number % NUM_NAMESPACES}"
        stored = self._custom.create_namespaced_custom_object(
            POOL.group, POOL.version, namespace, POOL.plural, manifest
        )
        asyncio.run(self._kube.apply(model_revision(InferencePool.model_validate(stored), Inspected(SHAPE))))

    def num_engines(self) -> int:
        return len(asyncio.run(self._kube.list(POD, None, labels=POOL_LABEL)))

    def run_engines(self) -> None:
        pods = asyncio.run(self._kube.list(POD, None, labels=POOL_LABEL))
        self._parallel(lambda pod: self._say(pod, running()), pods)

    def _say(self, pod: Manifest, status: Manifest) -> None:
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        with suppress(client.exceptions.ApiException):  # it has gone meanwhile
            self._core.patch_namespaced_pod_status(name, namespace, {"status": status})

    def _parallel(self, work: Callable[[Any], None], items: Iterable[Any]) -> None:
        with ThreadPoolExecutor(4) as executor:
            list(executor.map(work, items))


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def running() -> Manifest:
    state = {"running": {"startedAt": now()}}
    return {
        "phase": "Running", "podIP": ENGINES_IP, "podIPs": [{"ip": ENGINES_IP}],
        "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": now()}],
        "containerStatuses": [{**CONTAINER, "ready": True, "state": state}],
    }  # fmt: skip


def serve_engines() -> None:
    """One port answers for every engine, in a process of its own."""
    body = REPORT.model_dump_json(by_alias=True)

    async def load(_: web.Request) -> web.Response:
        return web.Response(text=body, content_type="application/json")

    app = web.Application()
    app.router.add_get("/load", load)
    web.run_app(app, host=ENGINES_IP, port=ADMIN_PORT, print=None)


def wait(what: str, predicate: Any, timeout_seconds: float = 900, poll_seconds: float = 1.0) -> float:
    """Seconds until it held."""
    started = time.monotonic()
    while not predicate():
        assert time.monotonic() - started < timeout_seconds, what
        time.sleep(poll_seconds)
    return time.monotonic() - started


def rest(operator: Operator) -> None:
    """Until everything that happened has been looked at: half a minute without a pool that waits for a worker."""
    looks: list[float] = []

    def is_at_rest() -> bool:
        looks.append(operator.metric("tidegate_operator_workqueue_depth"))
        return len(looks) >= 6 and max(looks[-6:]) <= NUM_WORKERS

    wait("it rests", is_at_rest, poll_seconds=5)


def idle(operator: Operator, seconds: float, what: str) -> None:
    before = operator.usage()
    time.sleep(seconds)
    after = operator.usage()
    rate = (after.num_reconciles - before.num_reconciles) / (after.at - before.at)
    print(f"{what}: {after.percent_since(before):.1f} % of a core, {rate:.1f} reconciles/s,"
          f" {operator.resident_mib():.0f} MiB", flush=True)  # fmt: skip


def full_resync(operator: Operator, num_pools: int, what: str) -> None:
    """A fresh process that knows nothing looks at every pool."""
    operator.start()
    wait("it answers", lambda: operator.metric("process_cpu_seconds_total") > 0, poll_seconds=0.1)
    seconds = wait("a full resync", lambda: operator.usage().num_reconciles >= num_pools, poll_seconds=0.5)
    usage = operator.usage()
    requests = operator.metric("tidegate_operator_api_requests_total")
    print(f"{what}: {seconds:.1f} s, {usage.cpu_seconds:.1f} s of CPU from its start on, {requests:.0f} requests,"
          f" {operator.resident_mib():.0f} MiB", flush=True)  # fmt: skip


def measure(world: World, operator: Operator, num_pools: int, seconds: float) -> None:
    operator.start()
    took = wait("every pool has a pod", lambda: world.num_engines() >= num_pools, timeout_seconds=1800, poll_seconds=5)
    print(f"{num_pools} new pools get their children: {took:.0f} s", flush=True)
    rest(operator)
    operator.stop()
    full_resync(operator, num_pools, "full resync, nothing to write")
    rest(operator)
    idle(operator, seconds, "idle, pods wait for nodes")
    world.run_engines()
    rest(operator)
    idle(operator, seconds, "idle, every engine is scraped")
    operator.stop()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pools", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=60, help="of each idle measurement")
    parser.add_argument("--engines", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.engines:
        serve_engines()
        return
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores before it starts", flush=True)
    engines = subprocess.Popen([sys.executable, "-m", "benchmarks.operator", "--engines"])
    cluster = Cluster.start()
    try:
        with tempfile.TemporaryDirectory() as folder:
            world = World(cluster, options.pools)
            world.create_pools()
            measure(world, Operator(cluster.admin_kubeconfig, Path(folder)), options.pools, options.seconds)
    finally:
        engines.terminate()
        cluster.stop()
    print(f"load average {os.getloadavg()[0]:.1f} at the end")


if __name__ == "__main__":
    main()
