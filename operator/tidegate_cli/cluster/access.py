"""How commands reach a cluster: kubectl's own kubeconfig, context and namespace, and what they read there.

Engines are asked for their load through the API server's pod proxy (`get` on `pods/proxy`), so this works from any
laptop that kubectl works from; who may not do that sees dashes.
"""

import argparse
import asyncio
import json
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Self

import urllib3
from kubernetes import config
from kubernetes.client import ApiClient, Configuration, CoreV1Api, V1Eviction, V1ObjectMeta
from kubernetes.client.exceptions import ApiException
from pydantic import ValidationError

from tidegate_cli.cluster.errors import ClusterError, NoSuchObject
from tidegate_core.telemetry import ADMIN_PORT, LOAD_PATH, LoadReport
from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.errors import KubeError, NotFound, TooManyRequests
from tidegate_operator.kube import ApiServer, error_of
from tidegate_operator.labels import text_selector
from tidegate_operator.resources import POD, POOL, Manifest
from tidegate_operator.world.observed import Pod
from tidegate_operator.world.readers import read_pod

NUM_THREADS = 16
PROXY_TIMEOUT_SECONDS = (3, 5)  # to connect, to answer


@dataclass(frozen=True)
class Replica:
    """One engine pod, and what it says of its load."""

    pod: Pod
    node: str
    num_restarts: int
    load: LoadReport | None
    silence: str = ""  # why there is no load


def run_in_cluster(
    arguments: argparse.Namespace, command: Callable[["Cluster"], Coroutine[Any, Any, int]], say: Callable[[str], None]
) -> int:
    """The exit code of `command`, or of what kept it from answering, which is said."""
    try:
        cluster = Cluster.connect(arguments)
        try:
            return asyncio.run(command(cluster))
        finally:
            cluster.close()
    except ClusterError as error:
        say(str(error))
        return error.exit_code
    except KubeError as error:
        say(str(error))
        return ClusterError.exit_code


class Cluster:
    """The cluster of a context, and the namespace that is meant where none is named."""

    def __init__(self, client: ApiClient, namespace: str) -> None:
        self.kube = ApiServer(client, num_threads=NUM_THREADS)
        self.namespace = namespace
        self._core = CoreV1Api(client)

    @classmethod
    def connect(cls, arguments: argparse.Namespace) -> Self:
        """Raises ClusterError where the kubeconfig or the context is wrong."""
        try:
            contexts, current = config.list_kube_config_contexts(arguments.kubeconfig)  # type: ignore[no-untyped-call]
            chosen = _context(contexts, current, arguments.kube_context)
            configuration = Configuration()
            config.load_kube_config(  # type: ignore[no-untyped-call]
                arguments.kubeconfig, context=chosen["name"], client_configuration=configuration
            )
        except ClusterError:
            raise
        except (config.ConfigException, OSError) as error:
            raise ClusterError(f"no cluster to ask: {error}; give --kubeconfig, or set KUBECONFIG") from error
        except Exception as error:  # the client takes any file for a kubeconfig, and stumbles over it somewhere
            raise ClusterError(f"the kubeconfig cannot be used: {type(error).__name__}: {error}") from error
        configuration.connection_pool_maxsize = NUM_THREADS
        configuration.retries = urllib3.Retry(connect=1, read=0, redirect=0, status=0)
        namespace = arguments.namespace or chosen["context"].get("namespace") or "default"
        return cls(ApiClient(configuration), namespace)

    def close(self) -> None:
        self.kube.close()

    async def pool(self, name: str) -> InferencePool:
        """Raises NoSuchObject, naming the pools there are."""
        found = await self.kube.get(POOL, self.namespace, name)
        if found is None:
            names = ", ".join(pool.metadata.name for pool in await self.pools()) or "none"
            raise NoSuchObject(f"no InferencePool {name} in namespace {self.namespace}; there are: {names}")
        return _read(found)

    async def pools(self, *, is_everywhere: bool = False) -> tuple[InferencePool, ...]:
        try:
            found = await self.kube.list(POOL, None if is_everywhere else self.namespace)
        except NotFound as error:
            raise ClusterError("inferencepools.tidegate.dev is not installed in this cluster") from error
        return tuple(map(_read, found))

    async def replicas(self, pool: InferencePool) -> tuple[Replica, ...]:
        """The pool's engine pods by name, each asked for its load."""
        selector = text_selector(pool.metadata.name)
        pods = await self.kube.list(POD, pool.metadata.namespace, labels=selector)
        found = await asyncio.gather(*(self._replica(pod) for pod in pods))
        return tuple(sorted(found, key=lambda replica: replica.pod.name))

    async def pod(self, name: str) -> Manifest:
        """Raises NoSuchObject."""
        found = await self.kube.get(POD, self.namespace, name)
        if found is None:
            raise NoSuchObject(f"no Pod {name} in namespace {self.namespace}")
        return found

    async def load(self, pod: Pod, namespace: str) -> LoadReport | str:
        """The report, or why there is none."""
        if not pod.is_running:
            return "not running"
        try:
            body = await asyncio.to_thread(self._read_load, namespace, pod.name)
            return LoadReport.model_validate_json(body)
        except ApiException as error:
            return "not allowed: get on pods/proxy" if error.status == 403 else f"no answer (HTTP {error.status})"
        except (urllib3.exceptions.HTTPError, OSError):
            return "no answer"
        except ValidationError:
            return "not a load report"

    async def evict(self, namespace: str, name: str) -> str:
        """Empty once the pod leaves; else why it must not leave now (a PodDisruptionBudget). Raises KubeError."""
        try:
            await asyncio.to_thread(self._evict, namespace, name)
        except NotFound:
            return ""
        except TooManyRequests as error:
            return str(error)
        return ""

    async def _replica(self, manifest: Manifest) -> Replica:
        pod = read_pod(manifest)
        answer = await self.load(pod, manifest["metadata"]["namespace"])
        load, silence = (None, answer) if isinstance(answer, str) else (answer, "")
        statuses = manifest.get("status", {}).get("containerStatuses", ())
        num_restarts = sum(status.get("restartCount", 0) for status in statuses)
        return Replica(pod, manifest["spec"].get("nodeName", ""), num_restarts, load, silence)

    def _read_load(self, namespace: str, name: str) -> bytes:
        response: Any = self._core.connect_get_namespaced_pod_proxy_with_path(  # stubs say str: not with this option
            f"{name}:{ADMIN_PORT}",
            namespace,
            LOAD_PATH.removeprefix("/"),
            _preload_content=False,
            _request_timeout=PROXY_TIMEOUT_SECONDS,
        )
        body: bytes = response.data
        return body

    def _evict(self, namespace: str, name: str) -> None:
        eviction = V1Eviction(metadata=V1ObjectMeta(name=name, namespace=namespace))
        try:
            self._core.create_namespaced_pod_eviction(name, namespace, eviction, _preload_content=False)
        except ApiException as error:
            body = error.body if isinstance(error.body, bytes) else str(error.body or "").encode()
            raise error_of("POST", f"eviction of {name}", error.status or 500, body) from error


def to_document(replica: Replica) -> dict[str, object]:
    """A replica for `-o json`."""
    pod = replica.pod
    return {
        "name": pod.name,
        "node": replica.node or None,
        "ready": pod.is_ready,
        "draining": pod.draining_since is not None,
        "restarts": replica.num_restarts,
        "load": None if replica.load is None else json.loads(replica.load.model_dump_json(by_alias=True)),
    }


def _context(contexts: list[dict[str, Any]], current: dict[str, Any], name: str | None) -> dict[str, Any]:
    """One entry of a kubeconfig."""
    if name is None:
        return current
    for each in contexts:
        if each["name"] == name:
            return each
    raise ClusterError(f"no context {name}; there are: {', '.join(each['name'] for each in contexts)}")


def _read(found: Manifest) -> InferencePool:
    try:
        return InferencePool.model_validate(found)
    except ValidationError as error:
        name = found["metadata"]["name"]
        raise ClusterError(f"InferencePool {name} is not of a version this command knows: {error}") from error
