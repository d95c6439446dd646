"""`tidegate drain POD...`: lets replicas leave as a node drain does: no request that was accepted is lost.

    evict (a PodDisruptionBudget may say: not now) ─▶ out of the Service ─▶ running requests end ─▶ gone

One after the other, each waited for; the pool's Deployment makes a new replica for each, elsewhere where the node is
cordoned. The size of the pool stays: to have fewer replicas lower maxReplicas, to have none set suspend.
"""

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import monotonic

from tidegate_cli.cluster.access import Cluster, run_in_cluster
from tidegate_cli.cluster.errors import ClusterError, NotAllowed
from tidegate_cli.cluster.options import add_access_arguments
from tidegate_operator.labels import ENGINE_ROLE, POOL_LABEL, ROLE_LABEL
from tidegate_operator.resources import POD, Manifest
from tidegate_operator.world.readers import read_pod

POLL_SECONDS = 2.0


@dataclass(frozen=True)
class Time:
    """Clock and patience of a drain."""

    now: Callable[[], float] = monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pods", metavar="POD", nargs="*", help="engine pods of the namespace")
    parser.add_argument("--node", metavar="NODE", help="every engine pod of every namespace on this node")
    parser.add_argument(
        "--timeout", type=float, default=1800.0, metavar="SECONDS", help="for all of them (default: 1800)"
    )
    add_access_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """0 once all of them are gone."""

    async def answer(cluster: Cluster) -> int:
        chosen = await choose(cluster, arguments.pods, arguments.node)
        await drain(cluster, chosen, arguments.timeout, print, Time())
        return 0

    return run_in_cluster(arguments, answer, lambda said: print(f"tidegate drain: {said}", file=sys.stderr))


async def choose(cluster: Cluster, names: list[str], node: str | None) -> list[Manifest]:
    """The pods meant. Raises NotAllowed for pods that are not a pool's engines."""
    if bool(names) == bool(node):
        raise NotAllowed("name pods, or give --node")
    if node:
        pods = await cluster.kube.list(POD, None, labels=f"{POOL_LABEL},{ROLE_LABEL}={ENGINE_ROLE}")
        return [pod for pod in pods if pod["spec"].get("nodeName") == node and not read_pod(pod).is_terminating]
    found = [await cluster.pod(name) for name in names]
    for pod in found:
        labels = pod["metadata"].get("labels", {})
        if POOL_LABEL not in labels or labels.get(ROLE_LABEL) != ENGINE_ROLE:
            raise NotAllowed(f"Pod {pod['metadata']['name']} is no engine of a pool; kubectl delete is for such pods")
    return found


async def drain(
    cluster: Cluster, pods: list[Manifest], timeout_seconds: float, say: Callable[[str], None], time: Time
) -> None:
    """Raises ClusterError when the time is over."""
    if not pods:
        say("nothing to drain")
    deadline = time.now() + timeout_seconds
    for pod in pods:
        await _drain_one(cluster, pod, deadline, say, time)


async def _drain_one(
    cluster: Cluster, manifest: Manifest, deadline: float, say: Callable[[str], None], time: Time
) -> None:
    namespace, name = manifest["metadata"]["namespace"], manifest["metadata"]["name"]
    last = ""
    is_evicted = read_pod(manifest).is_terminating
    while True:
        if not is_evicted:
            refused = await cluster.evict(namespace, name)
            is_evicted = not refused
            said = f"{name}: must not leave yet: {refused}" if refused else f"{name}: leaving"
        else:
            now = await cluster.kube.get(POD, namespace, name)
            if now is None or now["metadata"]["uid"] != manifest["metadata"]["uid"]:
                say(f"{name}: gone")
                return
            said = f"{name}: {await _what_is_left(cluster, now)}"
        if said != last:
            say(said)
            last = said
        if time.now() >= deadline:
            raise ClusterError(f"{said}; the time is over, it leaves on its own or can be drained again")
        await time.sleep(POLL_SECONDS)


async def _what_is_left(cluster: Cluster, manifest: Manifest) -> str:
    answer = await cluster.load(read_pod(manifest), manifest["metadata"]["namespace"])
    if isinstance(answer, str):
        return "ending"
    return f"{answer.running} requests running, {answer.waiting} waiting"
