"""I/O: the cluster's nodes with what live pods have taken of their devices. Reads only, once a minute for all pools.

Nodes are read in cluster mode alone. Of pods only those matter that hold a device, so only nodes with devices are
asked for theirs: a large cluster without GPUs costs one list of nodes.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from decimal import Decimal

from tidegate_core.quantity import parse_quantity
from tidegate_operator.kube import Kube
from tidegate_operator.resources import NODE, POD, Manifest
from tidegate_operator.world.kept import Kept
from tidegate_operator.world.observed import Node, is_device
from tidegate_operator.world.pod_total import pod_total
from tidegate_operator.world.readers import read_node

NODES_TTL_SECONDS = 60.0
_MAX_LISTS = 4  # at once: the API server has others to serve
_TERMINAL_PHASES = ("Succeeded", "Failed")


class NodeCache:
    """Nodes change slowly and are the same for all pools: one look a minute. None where they may not be read."""

    def __init__(self, kube: Kube, *, is_allowed: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._kube = kube
        self._is_allowed = is_allowed
        self._kept = Kept("nodes", self._read, clock=clock)
        self._gate = asyncio.Semaphore(_MAX_LISTS)

    async def nodes(self, max_age_seconds: float = NODES_TTL_SECONDS) -> tuple[Node, ...] | None:
        """Not older than that. Raises KubeError while they could never be read: an empty cluster is something else."""
        if not self._is_allowed:
            return None
        sight = await self._kept.sight(max_age_seconds)
        if sight.fault and not sight.is_answer:
            raise sight.fault.with_traceback(None)  # the same error for all who ask
        return sight.value

    async def _read(self) -> tuple[Node, ...]:
        pages = self._kube.pages(NODE, None)  # thousands of nodes as they are would be hundreds of megabytes
        nodes = [read_node(node) async for page in pages for node in page.items]
        return tuple(await asyncio.gather(*map(self._with_used, nodes)))

    async def _with_used(self, node: Node) -> Node:
        if not node.has_devices:
            return node
        async with self._gate:
            pods = await self._kube.list(POD, None, fields=f"spec.nodeName={node.name}")
        return replace(node, used=used_devices(pods))


def used_devices(pods: Iterable[Manifest]) -> dict[str, str]:
    """What live pods have asked for of each extended resource, spelled as in a node's allocatable."""
    totals: dict[str, int] = {}
    for pod in pods:
        if pod.get("status", {}).get("phase") not in _TERMINAL_PHASES:
            for resource, count in pod_total(pod["spec"], _devices).items():
                totals[resource] = totals.get(resource, 0) + int(count)
    return {resource: str(count) for resource, count in totals.items()}


def _devices(container: Manifest) -> dict[str, Decimal]:
    """Of extended resources requests equal limits, and a limit alone is the request."""
    resources = container.get("resources", {})
    asked = {**resources.get("limits", {}), **resources.get("requests", {})}
    return {name: parse_quantity(text) for name, text in asked.items() if is_device(name)}
