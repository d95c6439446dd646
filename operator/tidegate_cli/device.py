"""The device that `tidegate plan` plans for: a named GPU, an amount of memory, or the smallest GPU that does. Pure."""

from collections.abc import Callable
from dataclasses import dataclass

from tidegate_cli.errors import BadPlan
from tidegate_core.accelerator import CATALOGUE, Accelerator, Device, find_accelerator
from tidegate_core.errors import BadQuantity
from tidegate_core.fit import Fit, Target
from tidegate_core.quantity import format_bytes, parse_bytes

_LEAST_BYTES = 64 * 2**20  # below that it is a number whose unit was forgotten, not a device


@dataclass(frozen=True)
class PlannedDevice:
    """A device with the name people know it by; `is_chosen`: nobody asked for it, it is our answer."""

    name: str
    target: Target
    description: str
    is_chosen: bool = False


def named_gpu(name: str) -> PlannedDevice:
    """From the catalogue. Raises UnknownAccelerator."""
    gpu = find_accelerator(name)
    return PlannedDevice(gpu.name, _target(gpu), f"on {_with_memory(gpu)}")


def device_with(device: Device, memory: str, source: str) -> PlannedDevice:
    """Known by its memory alone; `source` names the flag or field in errors. Raises BadPlan."""
    try:
        memory_bytes = parse_bytes(memory)
    except BadQuantity as error:
        raise BadPlan(f"{source}: {error}") from error
    if memory_bytes < _LEAST_BYTES:
        raise BadPlan(f"{source}: {memory} is {memory_bytes:,} bytes; {_hint(memory)}")
    name, article = ("CPU", "a CPU pod") if device == Device.CPU else ("GPU", "a GPU")
    return PlannedDevice(name, Target(device, memory_bytes), f"on {article} with {format_bytes(memory_bytes)}")


def smallest_gpu(plan: Callable[[Target], Fit]) -> tuple[Fit, PlannedDevice]:
    """The smallest GPU of which the fewest fit: with the whole context, else shrunk; else the largest there is."""
    gpus = sorted(CATALOGUE, key=lambda gpu: gpu.memory_bytes)
    fits = [(plan(_target(gpu)), gpu) for gpu in gpus]
    good = [each for each in fits if each[0].fits]
    fewest = min((fit.tensor_parallel for fit, _ in good), default=0)
    good = [each for each in good if each[0].tensor_parallel == fewest]
    whole = [each for each in good if each[0].context == each[0].context_wanted]
    fit, gpu = next(iter(whole or good), fits[-1])
    why = "the smallest GPU that fits" if fit.fits else "the largest GPU known"
    description = f"on {_with_memory(gpu)}: {why}; choose with --gpu, --gpu-memory, --cpu-memory"
    return fit, PlannedDevice(gpu.name, _target(gpu), description, is_chosen=True)


def _target(gpu: Accelerator) -> Target:
    return Target(Device.CUDA, gpu.memory_bytes, bandwidth=gpu.bandwidth)


def _with_memory(gpu: Accelerator) -> str:
    return f"{gpu.name} ({format_bytes(gpu.memory_bytes)})"


def _hint(memory: str) -> str:
    """What a number without a unit was probably meant to be."""
    number = memory.strip()
    if not number.isdecimal() or int(number) == 0:
        return "write the size of a device, such as 24Gi"
    return f"did you mean {number}{'Gi' if int(number) < 1024 else 'Mi'}?"
