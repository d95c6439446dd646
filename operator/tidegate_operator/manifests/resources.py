"""Requests and limits of the engine and inspection containers: what the user wrote, else what the model needs."""

from dataclasses import dataclass
from math import ceil

from tidegate_core.quantity import format_quantity, parse_bytes, parse_quantity
from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.resources import Manifest

_MIB = 2**20
_HOST_MEMORY_MARGIN = 1.25  # residentBytes is an estimate; the page cache is reclaimed before a limit kills
_SHARED_MEMORY, _SHARED_MEMORY_EACH = 64 * _MIB, 2048 * _MIB  # /dev/shm, through which processes of a replica talk
_EPHEMERAL_REQUEST = "64Mi"  # logs and compiled kernels; weights stay on the claim
_EPHEMERAL_LIMIT = "2Gi"


@dataclass(frozen=True)
class ContainerResources:
    """As in a container: resource name -> quantity in canonical form, since other spellings would read as drift."""

    requests: tuple[tuple[str, str], ...]
    limits: tuple[tuple[str, str], ...]

    def to_manifest(self) -> Manifest:
        return {"requests": dict(self.requests), "limits": dict(self.limits)}


def shared_memory_bytes(num_devices: int) -> int:
    """Of /dev/shm, where the processes of several devices exchange what does not go from device to device."""
    return _SHARED_MEMORY + num_devices * _SHARED_MEMORY_EACH if num_devices > 1 else 0


def engine_resources(
    pool: InferencePool, resident_bytes: int, download_bytes: int = 0, num_devices: int = 1
) -> ContainerResources:
    """The user's values first. A GPU pool asks for devices, with a core for each, and host memory; a CPU pool's limit
    is its device.

    `download_bytes` is what the pod puts onto its node's disk before the engine starts. What is in /dev/shm is memory
    of the container too. Where the user's limit is below what we would ask for, that is asked for, and where the user
    asks for more disk than our limit, that is the limit.
    """
    user, device = pool.spec.pod.resources, pool.spec.accelerator
    disk = _at_least(_plus(_EPHEMERAL_LIMIT, download_bytes), user.requests.get("ephemeral-storage"))
    limits = {"ephemeral-storage": disk} | _canonical(user.limits)
    usual = {"ephemeral-storage": _plus(_EPHEMERAL_REQUEST, download_bytes), "cpu": str(num_devices)}
    if device.is_cpu:  # a device is not shared: no overcommitment
        usual |= {"memory": limits["memory"], "cpu": limits.get("cpu", "1")}
    else:
        needed = ceil(resident_bytes * _HOST_MEMORY_MARGIN / _MIB) * _MIB + shared_memory_bytes(num_devices)
        usual["memory"] = format_quantity(needed)
    requests = {name: _within(text, limits.get(name)) for name, text in usual.items()} | _canonical(user.requests)
    if not device.is_cpu:
        limits[device.resource] = requests[device.resource] = str(num_devices)
    return ContainerResources(tuple(sorted(requests.items())), tuple(sorted(limits.items())))


def inspection_resources() -> ContainerResources:
    """Headers are read, not weights."""
    requests = (("cpu", "100m"), ("ephemeral-storage", _EPHEMERAL_REQUEST), ("memory", "128Mi"))
    limits = (("ephemeral-storage", "256Mi"), ("memory", "1Gi"))
    return ContainerResources(requests, limits)


def download_resources() -> ContainerResources:
    """A few files at once, ten megabytes of each in memory; they go to the claim."""
    requests = (("cpu", "250m"), ("ephemeral-storage", _EPHEMERAL_REQUEST), ("memory", "256Mi"))
    limits = (("ephemeral-storage", "256Mi"), ("memory", "2Gi"))
    return ContainerResources(requests, limits)


def _within(request: str, limit: str | None) -> str:
    """An API server takes no request above its limit."""
    return request if limit is None or parse_quantity(request) <= parse_quantity(limit) else limit


def _at_least(limit: str, request: str | None) -> str:
    return limit if request is None or parse_quantity(request) <= parse_quantity(limit) else _spell(request)


def _plus(quantity: str, num_bytes: int) -> str:
    return format_quantity(parse_bytes(quantity) + num_bytes)


def _canonical(quantities: dict[str, str]) -> dict[str, str]:
    """As the API server would spell them: 1000m -> 1, 1024Mi -> 1Gi."""
    return {name: _spell(text) for name, text in quantities.items()}


def _spell(text: str) -> str:
    if text.endswith("i"):
        return format_quantity(parse_bytes(text))
    thousandths = ceil(parse_quantity(text) * 1000)
    number, units = thousandths, list("mkMGTPE")
    units.insert(1, "")
    while number and number % 1000 == 0 and len(units) > 1:
        number, units = number // 1000, units[1:]
    return f"{number}{units[0]}"
