"""Which nodes may run a pool's replicas, and how many accelerators each has free. Pure.

    has the device, and the scheduler may put the pods there   = candidate: decides about memory and sizes
        └─▶ schedulable, and devices that nobody has taken     = room for one more replica now

Sizing, the choice of a rollout strategy and `kubectl tidegate plan` ask here. A replica's devices must be free on one
node: two on two nodes are none for a replica that needs two.
"""

from collections.abc import Iterable, Mapping

from tidegate_core.quantity import parse_quantity
from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.sizing.placement import may_run
from tidegate_operator.world.observed import Node, Pod


def candidates(pool: InferencePool, nodes: Iterable[Node]) -> tuple[Node, ...]:
    """Nodes that have the pool's device and may run its pods, now or once they are uncordoned."""
    resource = pool.spec.accelerator.resource
    return tuple(node for node in nodes if num_devices(node, resource) > 0 and may_run(pool, node))


def num_devices(node: Node, resource: str) -> int:
    """All that the node's device plugin offers, taken or free."""
    return _count(node.allocatable.get(resource, "0"))


def free_accelerators(nodes: Iterable[Node], resource: str) -> Mapping[str, int]:
    """Devices by node name that no live pod has asked for; none on a node that takes no pods now.

    Only for extended resources: what pods take of `cpu` is not read.
    """
    return {node.name: _num_free(node, resource) for node in nodes}


def largest_node(nodes: Iterable[Node], resource: str) -> int:
    """Most devices that one node has, taken or free: no replica can ever get more."""
    return max((num_devices(node, resource) for node in nodes), default=0)


def shortage(nodes: Iterable[Node], resource: str, num_wanted: int) -> str:
    """Why a replica with so many devices finds no room now; empty where it finds some."""
    free = free_accelerators(nodes, resource)
    largest = max(free.values(), default=0)
    if largest >= num_wanted:
        return ""
    return (
        f"fits nowhere now: a replica needs {num_wanted} {resource} on one node, largest contiguous = {largest}, "
        f"{sum(free.values())} free on {len(free)} {'node' if len(free) == 1 else 'nodes'}"
    )


def num_held(pods: Iterable[Pod]) -> int:
    """Replicas that hold their devices and their share of a quota: all that have not ended.

    Pending ones, those of a surge and those that drain count like any other, as they do for the API server.
    """
    return sum(not pod.has_ended for pod in pods)


def _num_free(node: Node, resource: str) -> int:
    if not node.is_schedulable:
        return 0
    return max(0, num_devices(node, resource) - _count(node.used.get(resource, "0")))


def _count(quantity: str) -> int:
    """Of devices, which are nearly always written as plain numbers: a thousand nodes are read at every look."""
    return int(quantity) if quantity.isdecimal() else int(parse_quantity(quantity))
