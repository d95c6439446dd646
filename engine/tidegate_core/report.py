"""A Fit in one sentence, for conditions, errors and `tidegate plan`."""

from tidegate_core.fit import DEVICE_COUNTS, Constraint, Fit
from tidegate_core.quantity import format_bytes


def statement(fit: Fit) -> str:
    """The answer in a sentence with its numbers; what does not fit is named with what it needs and what there is."""
    if not fit.fits:
        return f"does not fit: {_why_not(fit)}"
    shrunk = "" if fit.context == fit.context_wanted else f" (shrunk from {fit.context_wanted:,})"
    pool, weights = format_bytes(fit.kv_pool_bytes), format_bytes(fit.per_gpu_weight_bytes)
    each = "" if fit.tensor_parallel == 1 else f" on each of {fit.tensor_parallel} devices"
    gives = f"context {fit.context:,}{shrunk} and {_slots(fit)}"
    return f"fits: {pool} of KV cache beside {weights} of weights{each} give {gives}{_waiting(fit)}"


def _waiting(fit: Fit) -> str:
    if fit.devices_there is None:
        return ""
    return f"; replicas wait for a node with {fit.tensor_parallel} devices, none has more than {fit.devices_there}"


def _why_not(fit: Fit) -> str:
    match fit.binding_constraint:
        case Constraint.MODEL_CONTEXT:
            return f"context.min {fit.context_smallest:,} is above the longest context, {fit.context_wanted:,}"
        case Constraint.TENSOR_PARALLEL:
            return _not_divisible(fit.tensor_parallel)
        case Constraint.DEVICES:
            taken = f"a replica takes {fit.tensor_parallel} devices of {format_bytes(fit.memory_bytes)} on one node"
            return f"{taken}, and no node has more than {fit.devices_there}"
        case Constraint.OVERHEAD:
            needed, memory = format_bytes(fit.overhead_bytes), format_bytes(fit.memory_bytes)
            return f"the engine needs {needed} before any weight, the device has {memory}"
        case Constraint.WEIGHTS:
            weights, usable = format_bytes(fit.per_gpu_weight_bytes), format_bytes(fit.usable_bytes)
            each = "" if fit.tensor_parallel == 1 else f" on each of {fit.tensor_parallel} devices"
            return f"weights need {weights}{each}, {usable} are usable, which leaves no room for KV cache"
        case Constraint.LOADING:
            needed, memory = format_bytes(fit.loading_floor_bytes), format_bytes(fit.memory_bytes)
            return f"loading takes up to {needed} while weights are decoded, the device has {memory}"
        case _:
            needed = format_bytes(fit.smallest_kv_bytes)
            left = format_bytes(fit.usable_bytes - fit.per_gpu_weight_bytes)
            return (
                f"one sequence of {fit.context_smallest:,} tokens needs {needed} of KV cache, {left} are left beside "
                f"the weights: enough for {fit.context:,} tokens"
            )


def _not_divisible(num_devices: int) -> str:
    if num_devices in DEVICE_COUNTS:
        return f"the attention heads cannot be divided between {num_devices} devices"
    *few, most = map(str, DEVICE_COUNTS)
    return f"a replica is spread over {', '.join(few)} or {most} devices, not {num_devices}"


def _slots(fit: Fit) -> str:
    return "1 slot" if fit.slots == 1 else f"{fit.slots:,} slots"
