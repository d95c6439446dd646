"""What the same replica would get on the next smaller and the next larger device, so that a choice can be judged.

Called by sizing. GPUs have neighbours in the catalogue; the memory of a pod is halved and doubled.
"""

from dataclasses import replace

from tidegate_core.accelerator import CATALOGUE, Accelerator, Device
from tidegate_core.estimate import Case, estimate
from tidegate_core.fit import Option
from tidegate_core.quantity import format_quantity

_LEAST_STEP = 1.1  # an L4 and an A10 are the same size for all that it matters


def next_smaller(case: Case) -> Option | None:
    """None where there is none."""
    if case.target.device == Device.CPU:
        return _with_memory(case, case.target.memory_bytes // 2)
    smaller = [gpu for gpu in CATALOGUE if gpu.memory_bytes * _LEAST_STEP < case.target.memory_bytes]
    return _on(case, max(smaller, key=lambda gpu: gpu.memory_bytes)) if smaller else None


def next_larger(case: Case) -> Option | None:
    """None where there is none."""
    if case.target.device == Device.CPU:
        return _with_memory(case, case.target.memory_bytes * 2)
    larger = [gpu for gpu in CATALOGUE if gpu.memory_bytes > case.target.memory_bytes * _LEAST_STEP]
    return _on(case, min(larger, key=lambda gpu: gpu.memory_bytes)) if larger else None


def _on(case: Case, gpu: Accelerator) -> Option:
    return _option(case, gpu.name, gpu.memory_bytes)


def _with_memory(case: Case, memory_bytes: int) -> Option:
    return _option(case, f"{format_quantity(memory_bytes)} of memory", memory_bytes)


def _option(case: Case, name: str, memory_bytes: int) -> Option:
    fit = estimate(replace(case, target=replace(case.target, memory_bytes=memory_bytes)))
    return Option(name, memory_bytes, fit.context if fit.fits else 0, fit.slots)
