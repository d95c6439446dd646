"""The cluster that scenarios run on: restricted pods, mounted environment, GPUs by name, and nothing left behind."""

import os
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from e2e.cluster.access import ApiAccess
from e2e.cluster.cluster import Cluster, sweep
from e2e.cluster.errors import KubectlFailed
from e2e.cluster.fixtures import NUM_GPUS
from e2e.cluster.images import ImageBuilder
from e2e.cluster.paths import REPOSITORY
from e2e.cluster.pods import RestrictedPod
from e2e.cluster.spec import ClusterSpec
from e2e.cluster.volumes import VENV_MOUNT
from tests.waiting import eventually

SERVE = ("python", "-m", "http.server", "8080", "--directory", "/tmp")
WITHOUT_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def run_to_end(cluster: Cluster, namespace: str, pod: RestrictedPod) -> str:
    """The pod's output; AssertionError with it where the pod fails."""
    cluster.kubectl("apply", "-n", namespace, "-f", "-", input=pod.manifest())

    def end() -> str:
        phase = cluster.kubectl("get", "pod", pod.name, "-n", namespace, "-o", "jsonpath={.status.phase}")
        return phase if phase in ("Succeeded", "Failed") else ""

    phase = eventually(end, timeout_seconds=90, what=f"the end of pod {pod.name}")
    output = cluster.kubectl("logs", pod.name, "-n", namespace)
    assert phase == "Succeeded", output
    return output


def start_serving(access: ApiAccess, namespace: str, image: str) -> str:
    """A pod that serves /tmp at port 8080; returns its address once it is reachable from here."""
    pod = RestrictedPod("server", image, SERVE, labels={"app": "server"})
    access.kubectl("apply", "-n", namespace, "-f", "-", input=pod.manifest())
    access.kubectl("wait", "-n", namespace, "--for=condition=Ready", "pod/server", "--timeout=60s")
    address = access.kubectl("get", "pod", "server", "-n", namespace, "-o", "jsonpath={.status.podIP}")
    eventually(lambda: is_serving(address), what=f"the server at {address}")
    return address


def is_serving(address: str) -> bool:
    try:
        with WITHOUT_PROXY.open(f"http://{address}:8080/", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_a_restricted_pod_imports_torch_from_the_mounted_environment(
    cluster: Cluster, namespace: str, engine_image: str
) -> None:
    cluster.provide_volumes(namespace, {"venv": REPOSITORY / ".venv"})
    script = "import os, torch, tidegate_core; print(os.getuid(), torch.ones(2).sum().item(), tidegate_core.__file__)"
    pod = RestrictedPod("torch", engine_image, [f"{VENV_MOUNT}/bin/python", "-c", script], {"venv": VENV_MOUNT})
    assert run_to_end(cluster, namespace, pod).split() == ["10001", "2.0", "/app/tidegate_core/__init__.py"]


def test_the_mounted_environment_is_read_only(cluster: Cluster, namespace: str, engine_image: str) -> None:
    cluster.provide_volumes(namespace, {"venv": REPOSITORY / ".venv"})
    script = f"open('{VENV_MOUNT}/written', 'w')"
    pod = RestrictedPod("writer", engine_image, ["python", "-c", script], {"venv": VENV_MOUNT})
    with pytest.raises(AssertionError, match="Read-only file system"):
        run_to_end(cluster, namespace, pod)


def test_the_operator_image_runs_the_command_line_and_has_no_torch(
    cluster: Cluster, namespace: str, operator_image: str
) -> None:
    command = ["python", "-m", "tidegate_cli", "--version"]
    assert run_to_end(cluster, namespace, RestrictedPod("version", operator_image, command)).split()
    script = "import importlib.util as u, tidegate_operator, kopf; print(u.find_spec('torch'))"
    pod = RestrictedPod("imports", operator_image, ["python", "-c", script])
    assert run_to_end(cluster, namespace, pod).strip() == "None"


def test_the_node_offers_gpus_with_the_labels_of_a_real_one(
    cluster: Cluster, namespace: str, images: ImageBuilder
) -> None:
    labels = r"jsonpath={.metadata.labels.nvidia\.com/gpu\.count} {.metadata.labels.nvidia\.com/gpu\.memory}"
    assert cluster.kubectl("get", "node", "node1", "-o", labels).split() == [str(NUM_GPUS), "81559"]
    script = "import os; print(os.environ['NVIDIA_VISIBLE_DEVICES'])"
    pod = RestrictedPod("two", images.python.name, ["python", "-c", script], num_gpus=2)
    devices = run_to_end(cluster, namespace, pod).strip().split(",")
    assert len(set(devices)) == 2


def test_a_pod_that_asks_for_more_gpus_than_there_are_stays_pending(
    cluster: Cluster, namespace: str, images: ImageBuilder
) -> None:
    pod = RestrictedPod("greedy", images.python.name, SERVE, num_gpus=NUM_GPUS + 1)
    cluster.kubectl("apply", "-n", namespace, "-f", "-", input=pod.manifest())
    reason = "jsonpath={.status.conditions[?(@.type=='PodScheduled')].message}"

    def message() -> str:
        return cluster.kubectl("get", "pod", "greedy", "-n", namespace, "-o", reason)

    assert "Insufficient nvidia.com/gpu" in eventually(message)


def test_an_unrestricted_pod_is_refused(cluster: Cluster, namespace: str, images: ImageBuilder) -> None:
    with pytest.raises(KubectlFailed, match="violates PodSecurity"):
        cluster.kubectl("run", "plain", "-n", namespace, "--image", images.python.name)


def test_services_logs_and_exec_work_from_the_machine(cluster: Cluster, namespace: str, images: ImageBuilder) -> None:
    start_serving(cluster, namespace, images.python.name)
    cluster.kubectl("expose", "pod", "server", "-n", namespace, "--port=8080")
    address = cluster.kubectl("get", "service", "server", "-n", namespace, "-o", "jsonpath={.spec.clusterIP}")
    eventually(lambda: is_serving(address), what=f"the service at {address}")
    assert "GET / HTTP" in cluster.kubectl("logs", "server", "-n", namespace)
    assert cluster.kubectl("exec", "server", "-n", namespace, "--", "sh", "-c", "echo $HOME").strip() == "/tmp"


def test_a_pod_reaches_a_server_in_the_test_process(cluster: Cluster, namespace: str, images: ImageBuilder) -> None:
    with answering(cluster.network.host) as url:
        script = f"import urllib.request; print(urllib.request.urlopen('{url}', timeout=5).read().decode())"
        pod = RestrictedPod("client", images.python.name, ["python", "-c", script])
        assert run_to_end(cluster, namespace, pod).strip() == "from the test"


@contextmanager
def answering(host: str) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"from the test")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer((host, 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://{host}:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture
def other_owner() -> Iterator[subprocess.Popen[str]]:
    """A process that owns a cluster."""
    command = [sys.executable, "-m", "e2e.cluster_itself.owner_process"]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def folder_of(owner: subprocess.Popen[str]) -> Path:
    assert owner.stdout is not None
    line = owner.stdout.readline()
    assert line, "the owner ended without a cluster, see its output above"
    return Path(line.strip())


def traces(spec: ClusterSpec) -> list[str]:
    """What the machine still has of a cluster."""
    assert spec.network is not None
    mount, label = Path("/sys/fs/cgroup"), spec.network.label
    groups = [*mount.glob(label), *mount.glob(f"*/{label}")]  # not `**`, which trips over groups that vanish meanwhile
    links = [link for link in Path("/sys/class/net").iterdir() if link.name == label]
    mounts = [line for line in Path("/proc/mounts").read_text().splitlines() if f"{spec.folder}/" in line]
    processes = [path for path in Path("/proc").glob("[0-9]*/cmdline") if f"{spec.folder}/" in _read(path)]
    folder = [spec.folder] if spec.folder.exists() else []
    return [str(trace) for trace in (*groups, *links, *mounts, *processes, *folder)]


def _read(path: Path) -> str:
    try:
        return path.read_text().replace("\0", " ")
    except OSError:  # ended meanwhile
        return ""


def test_two_clusters_run_side_by_side_and_nothing_is_left_when_an_owner_is_killed(
    cluster: Cluster, other_owner: subprocess.Popen[str], images: ImageBuilder
) -> None:
    other = ApiAccess(ClusterSpec.read(folder_of(other_owner)))
    other.create_namespace("beside", {})
    here = start_serving(cluster, _namespace(cluster, "beside"), images.python.name)
    there = start_serving(other, "beside", images.python.name)
    assert here != there
    assert traces(other.spec)
    cluster.delete_namespace("beside")

    other_owner.send_signal(signal.SIGKILL)
    eventually(lambda: traces(other.spec) == [], timeout_seconds=60, what=f"no trace of {other.spec.name}")
    assert cluster.kubectl("get", "--raw", "/readyz") == "ok"


def test_what_a_killed_supervisor_leaves_is_swept(other_owner: subprocess.Popen[str]) -> None:
    spec = ClusterSpec.read(folder_of(other_owner))
    os.kill(int(spec.supervisor_pid_file.read_text()), signal.SIGKILL)
    processes = Path(f"/proc/{spec.pid_file.read_text()}")
    eventually(lambda: not processes.exists(), what="the end of the namespaces")
    sweep()
    assert traces(spec) == []


def _namespace(cluster: Cluster, name: str) -> str:
    cluster.create_namespace(name, {})
    return name
