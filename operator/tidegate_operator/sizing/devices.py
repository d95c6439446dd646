"""The devices of a pool and their memory: what the spec says, what the nodes' labels say, or the catalogue. Pure.

    cpu pool             the pod's memory limit
    accelerator.memory   as it is written
    else                 the smallest device on the nodes where the pool may run: for a replica of several those that
                         have so many; where nodes may not be read, the product that pod.nodeSelector asks for

Labels are those of NVIDIA's GPU feature discovery, for a MIG slice with a resource of its own (nvidia.com/mig-1g.10gb)
those of the slice. Called by fitting.py.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from tidegate_core.accelerator import find_accelerator, mig_slice_bytes
from tidegate_core.errors import UnknownAccelerator
from tidegate_core.fit import DEVICE_COUNTS
from tidegate_core.quantity import format_bytes, parse_bytes
from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.sizing.capacity import candidates, largest_node, num_devices
from tidegate_operator.world.observed import Node

PRODUCT_LABEL = "nvidia.com/gpu.product"  # prices are told by it
MIG_PREFIX = "nvidia.com/mig-"
_MIB = 2**20


@dataclass(frozen=True)
class NodeDevice:
    """One device of a node."""

    node: Node
    product: str  # empty where no label says
    memory_bytes: int


@dataclass(frozen=True)
class PoolDevice:
    """What a replica on so many devices is sized for."""

    name: str  # engines on devices of the same name can be compared
    memory_bytes: int  # of one
    num_devices: int = 1
    difference: str = ""  # where nodes differ: which one counts, and how to get a larger one
    largest_bytes: int = 0  # where nodes differ, of the largest
    selector: str = ""  # pod.nodeSelector that chooses the largest


@dataclass(frozen=True)
class PoolDevices:
    """What a replica of the pool may be made of."""

    choices: tuple[PoolDevice, ...]  # one for each number of devices, fewest first
    asked: PoolDevice | None = None  # for the number that is settled already
    most_on_a_node: int | None = None  # devices, taken or free; None: no node is known
    are_parts: bool = False  # slices or shares of a GPU, which cannot be joined
    node_of_parts: str = ""  # one of those that have them, where others do not

    def of(self, num_devices: int) -> PoolDevice:
        """The one for a replica of so many."""
        if self.asked is not None and self.asked.num_devices == num_devices:
            return self.asked
        return next(each for each in self.choices if each.num_devices == num_devices)


@dataclass(frozen=True)
class UnknownDevice:
    """Why its memory is not known, and what to do."""

    message: str


def find_devices(
    pool: InferencePool, nodes: Iterable[Node] | None, settled: int | None = None
) -> PoolDevices | UnknownDevice:
    """`nodes` is None where the operator may not look at them; `settled`: devices of a template that is there."""
    accelerator = pool.spec.accelerator
    if accelerator.is_cpu:
        memory_bytes = parse_bytes(pool.spec.pod.resources.limits["memory"])
        return PoolDevices((PoolDevice(accelerator.resource, memory_bytes),))
    usable = candidates(pool, nodes or ())
    parted = sorted(node.name for node in usable if _is_part(node.labels, accelerator.resource))
    are_parts = bool(parted) or accelerator.resource.startswith(MIG_PREFIX)
    are_parts = are_parts or _is_part(pool.spec.pod.node_selector, accelerator.resource)
    counts = DEVICE_COUNTS[:1] if are_parts else DEVICE_COUNTS
    found = _kinds(pool, usable, counts, is_blind=nodes is None)
    if isinstance(found, UnknownDevice):
        return found
    asked = settled or accelerator.count
    return PoolDevices(
        choices=found,
        asked=None if asked is None else _for_count(found, asked),
        most_on_a_node=largest_node(usable, accelerator.resource) or None,
        are_parts=are_parts,
        node_of_parts=parted[0] if 0 < len(parted) < len(usable) else "",
    )


def _kinds(
    pool: InferencePool, usable: tuple[Node, ...], counts: tuple[int, ...], *, is_blind: bool
) -> tuple[PoolDevice, ...] | UnknownDevice:
    """The device of a replica on each number of them."""
    accelerator = pool.spec.accelerator
    if accelerator.memory:
        one: PoolDevice | UnknownDevice = PoolDevice(accelerator.resource, parse_bytes(accelerator.memory))
    elif is_blind:
        one = _asked_for(pool)
    elif not usable:
        return _nowhere(accelerator.resource)
    else:
        return _on_nodes(accelerator.resource, usable, counts)
    return one if isinstance(one, UnknownDevice) else tuple(replace(one, num_devices=count) for count in counts)


def _on_nodes(
    resource: str, usable: tuple[Node, ...], counts: tuple[int, ...]
) -> tuple[PoolDevice, ...] | UnknownDevice:
    """A node with fewer devices than a replica takes decides about nothing."""
    found: list[PoolDevice] = []
    fewer: tuple[Node, ...] = ()
    try:
        for count in counts:
            enough = tuple(node for node in fewer or usable if num_devices(node, resource) >= count)
            is_new = len(enough) not in (0, len(fewer))  # thousands of nodes may be alike
            each = _smallest(resource, _settled(enough)) if is_new else found[-1]
            found.append(replace(each, num_devices=count))
            fewer = enough or fewer
    except UnknownAccelerator as error:
        return _unknown(resource, str(error))
    return tuple(found)


def _smallest(resource: str, nodes: tuple[Node, ...]) -> PoolDevice:
    found = [node_device(node, resource) for node in nodes]
    smallest = min(found, key=lambda each: (each.memory_bytes, each.node.name))
    largest = max(found, key=lambda each: (each.memory_bytes, each.node.name))
    one = PoolDevice(smallest.product or resource, smallest.memory_bytes)
    if largest.memory_bytes == smallest.memory_bytes:
        return one
    selector = _selector(resource, largest, smallest)
    said = (
        f"sized for the smallest {resource} that may be scheduled, {format_bytes(smallest.memory_bytes)} on node "
        f"{smallest.node.name}; pod.nodeSelector {selector} would give {format_bytes(largest.memory_bytes)}"
    )
    return replace(one, difference=said, largest_bytes=largest.memory_bytes, selector=selector)


def _for_count(choices: tuple[PoolDevice, ...], count: int) -> PoolDevice:
    known = [each for each in choices if each.num_devices <= count]
    return replace(known[-1], num_devices=count)


def _is_part(labels: Mapping[str, str], resource: str) -> bool:
    """A slice, or a device of which several pods have a share: two of them may be the same GPU."""
    shared = labels.get(f"{resource}.sharing-strategy", "none") != "none" and _num_shares(labels, resource) > 1
    return shared or "-MIG-" in labels.get(f"{resource}.product", "")


def _num_shares(labels: Mapping[str, str], resource: str) -> int:
    told = labels.get(f"{resource}.replicas", "")
    return max(1, int(told)) if told.isdecimal() else 1  # anybody can write a label


def _asked_for(pool: InferencePool) -> PoolDevice | UnknownDevice:
    """From the pool's own words: its pods run on nodes with these labels and on no others."""
    resource, wanted = pool.spec.accelerator.resource, pool.spec.pod.node_selector
    unread = "the operator may not look at nodes"
    if f"{resource}.product" not in wanted:
        return _unknown(resource, f"{unread}, and pod.nodeSelector has no {resource}.product")
    try:
        asked = node_device(Node("of pod.nodeSelector", wanted, {}), resource)
    except UnknownAccelerator as error:
        return _unknown(resource, f"{unread}, and {error}")
    return PoolDevice(asked.product, asked.memory_bytes)


def node_device(node: Node, resource: str) -> NodeDevice:
    """Raises UnknownAccelerator naming the node and what its labels lack."""
    labels = node.labels
    product = labels.get(f"{resource}.product") or labels.get(f"{resource}.product-name", "")
    replicas = _num_shares(labels, resource)
    sharing = labels.get(f"{resource}.sharing-strategy", "none")
    if sharing == "time-slicing" and replicas > 1:
        raise UnknownAccelerator(
            f"node {node.name} shares each {resource} between {replicas} pods by time-slicing, and no label says how "
            "much memory one of them has"
        )
    memory_bytes = _memory_bytes(node, resource, product)
    return NodeDevice(node, product, memory_bytes // replicas if sharing == "mps" else memory_bytes)


def _memory_bytes(node: Node, resource: str, product: str) -> int:
    """The label counts MiB; without one the catalogue knows the product, and a slice's name its size."""
    label = node.labels.get(f"{resource}.memory", "")
    if label.isdecimal():
        return int(label) * _MIB
    try:
        return find_accelerator(product).memory_bytes
    except UnknownAccelerator as error:
        if resource.startswith(MIG_PREFIX):
            return mig_slice_bytes(resource.removeprefix(MIG_PREFIX))
        lacking = f"node {node.name} has neither the label {resource}.memory nor a known {resource}.product"
        raise UnknownAccelerator(f"{lacking}: {error}" if product else lacking) from error


def _settled(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """A cordoned node is on its way out and decides about nothing, unless there are no others."""
    return tuple(node for node in nodes if not node.is_cordoned) or nodes


def _selector(resource: str, wanted: NodeDevice, other: NodeDevice) -> str:
    """A label that tells the two apart."""
    if wanted.product and wanted.product != other.product:
        return f"{{{resource}.product: {wanted.product}}}"
    if label := wanted.node.labels.get(f"{resource}.memory"):
        return f'{{{resource}.memory: "{label}"}}'
    return "with a label of the larger ones"


def _nowhere(resource: str) -> UnknownDevice:
    return UnknownDevice(
        f"no node that the pool may use has {resource}; add such a node, or set accelerator.resource: cpu; where nodes "
        "are made on demand, set accelerator.memory to that of one device, and replicas wait for a node"
    )


def _unknown(resource: str, cause: str) -> UnknownDevice:
    return UnknownDevice(f"the memory of {resource} is not known: {cause}; set accelerator.memory, such as 24Gi")
