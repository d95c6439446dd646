"""What would help where a model does not fit, or fits with less context than asked for, each tried.

What this version can do comes first, and among that what is cheapest.

A remedy is listed only when sizing says that it helps, with the context and the slots it would give.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace

from tidegate_core.accelerator import CATALOGUE, Device
from tidegate_core.estimate import Case, estimate
from tidegate_core.fit import BLOCK_SIZE, Constraint, Fit, Remedy, RemedyKind
from tidegate_core.quantity import format_bytes, format_quantity
from tidegate_core.solve import wanted_context
from tidegate_core.storage import KV_8BIT, Quantization

_MEMORY_STEP = 2**28  # memory is recommended in steps of 256 MiB
_MOST_MEMORY = 2**44  # no device has more: beyond that the demand is wrong, not the device

_Attempt = tuple[RemedyKind, str, Case]


def remedies_for(fit: Fit, case: Case) -> tuple[Remedy, ...]:
    """Empty when everything asked for is given."""
    if fit.fits and fit.context == fit.context_wanted:
        return ()
    if fit.binding_constraint is Constraint.MODEL_CONTEXT:
        return _within_the_model(case)
    return tuple(sorted(_priced(fit, _attempts(fit, case)), key=lambda remedy: not remedy.is_offered))


def fewer_gpus(case: Case) -> tuple[Remedy, ...]:
    """Where more were asked for than can be joined, although these do."""
    num_gpus = case.target.tensor_parallel
    return (_remedy(RemedyKind.FEWER_GPUS, "1 GPU" if num_gpus == 1 else f"{num_gpus} GPUs", estimate(case)),)


def _within_the_model(case: Case) -> tuple[Remedy, ...]:
    """No device makes a model's context longer; within it, the device may still be too small."""
    limit = wanted_context(case.shape, case.demand)
    within = replace(case, demand=replace(case.demand, context_min=limit))
    fit = estimate(within)
    first = Remedy(RemedyKind.SMALLER_CONTEXT, f"context.min of at most {limit:,}", limit, fit.slots)
    return (first, *remedies_for(fit, within))


def _priced(fit: Fit, attempts: Iterator[_Attempt]) -> Iterator[Remedy]:
    for kind, action, case in attempts:
        better = estimate(case)
        if _helps(better, fit):
            yield _remedy(kind, action, better)


def _remedy(kind: RemedyKind, action: str, gives: Fit) -> Remedy:
    slots = "1 slot" if gives.slots == 1 else f"{gives.slots:,} slots"
    return Remedy(kind, f"{action}: context {gives.context:,}, {slots}", gives.context, gives.slots)


def _helps(better: Fit, fit: Fit) -> bool:
    return better.fits and (not fit.fits or better.context > fit.context)


def _attempts(fit: Fit, case: Case) -> Iterator[_Attempt]:
    yield from _eight_bits(fit, case)
    yield RemedyKind.WEIGHTS_4BIT, "4-bit weights", replace(case, storage=replace(case.storage, are_weights_4bit=True))
    if case.target.device == Device.CUDA:
        yield from _more_gpus(fit, case)
    if not fit.fits and fit.context >= BLOCK_SIZE:
        smaller = replace(case.demand, context_min=fit.context)
        yield RemedyKind.SMALLER_CONTEXT, f"context.min {fit.context:,}", replace(case, demand=smaller)
    larger_gpu = list(_larger_gpu(fit, case)) if case.target.device == Device.CUDA else []
    yield from larger_gpu or _more_memory(fit, case)


def _eight_bits(fit: Fit, case: Case) -> list[_Attempt]:
    """For the KV cache, for weights; for both only where neither alone helps."""
    attempts: list[_Attempt] = []
    if case.storage.kv_width != KV_8BIT:
        narrow = replace(case.storage, kv_width=KV_8BIT)
        attempts.append((RemedyKind.KV_8BIT, "int8 KV cache", replace(case, storage=narrow)))
    if case.storage.quantization is None and case.target.device == Device.CPU:
        int8 = replace(case.storage, quantization=Quantization.INT8)
        attempts.append((RemedyKind.WEIGHTS_8BIT, "int8 weights", replace(case, storage=int8)))
    if len(attempts) == 2 and not any(_helps(estimate(tried), fit) for _, _, tried in attempts):
        both = replace(case.storage, kv_width=KV_8BIT, quantization=Quantization.INT8)
        attempts.append((RemedyKind.BOTH_8BIT, "int8 weights and int8 KV cache", replace(case, storage=both)))
    return attempts


def _is_enough(case: Case, fit: Fit) -> bool:
    """To fit at all where it did not; the whole context where it was shrunk."""
    better = estimate(case)
    return better.fits and (not fit.fits or better.context == fit.context_wanted)


def _more_gpus(fit: Fit, case: Case) -> Iterator[_Attempt]:
    """The fewest that are enough; a number that does not divide the attention heads never is."""
    for target in case.more:
        more = replace(case, target=target)
        if _is_enough(more, fit):
            yield RemedyKind.MORE_GPUS, f"{target.tensor_parallel} GPUs", more
            return


def _larger_gpu(fit: Fit, case: Case) -> Iterator[_Attempt]:
    """The smallest of the catalogue that is enough."""
    for gpu in sorted(CATALOGUE, key=lambda gpu: gpu.memory_bytes):
        target = replace(case.target, memory_bytes=gpu.memory_bytes, bandwidth=gpu.bandwidth)
        larger = replace(case, target=target)
        if gpu.memory_bytes > case.target.memory_bytes and _is_enough(larger, fit):
            several = f"{target.tensor_parallel} x " if target.tensor_parallel > 1 else ""
            yield RemedyKind.LARGER_GPU, f"{several}{gpu.name} ({format_bytes(gpu.memory_bytes)})", larger
            return


def _more_memory(fit: Fit, case: Case) -> Iterator[_Attempt]:
    """The least that is enough, by bisection: more memory never gives less."""

    def with_memory(num_steps: int) -> Case:
        return replace(case, target=replace(case.target, memory_bytes=num_steps * _MEMORY_STEP))

    steps = range(case.target.memory_bytes // _MEMORY_STEP + 1, _MOST_MEMORY // _MEMORY_STEP)
    index = bisect_left(steps, x=True, key=lambda num_steps: _is_enough(with_memory(num_steps), fit))
    if index < len(steps):
        memory = format_quantity(steps[index] * _MEMORY_STEP)
        yield RemedyKind.MORE_MEMORY, f"{memory} of memory", with_memory(steps[index])
