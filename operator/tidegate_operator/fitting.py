"""Whether and how a pool's model fits its device. Pure.

Finds the device's memory (the spec's word, node labels, the catalogue), asks tidegate_core.sizing and says it in words.
"""

from dataclasses import dataclass

from tidegate_core.accelerator import Device, find_accelerator
from tidegate_core.errors import UnknownAccelerator
from tidegate_core.fit import Demand, Fit, Remedy, RemedyKind, Target
from tidegate_core.quantity import parse_bytes
from tidegate_core.report import statement
from tidegate_core.shape import ModelShape
from tidegate_core.sizing import plan_fit
from tidegate_core.storage import KvDtype, Quantization, Storage, storage_of
from tidegate_operator.api.model import KvCacheDtype, WeightQuantization
from tidegate_operator.api.reasons import Reason
from tidegate_operator.api.status import ModelStatus, SizingStatus
from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.capacity import candidates
from tidegate_operator.observed import Node

MEMORY_LABEL = "nvidia.com/gpu.memory"  # MiB, written by GPU feature discovery
PRODUCT_LABEL = "nvidia.com/gpu.product"
_MIB = 2**20
_KV_DTYPES = {None: KvDtype.AUTO, KvCacheDtype.INT8: KvDtype.INT8, KvCacheDtype.FP8: KvDtype.FP8}
_QUANTIZATIONS = {None: None, WeightQuantization.INT8: Quantization.INT8}


@dataclass(frozen=True)
class FitFinding:
    """`fit` is None while the device's memory is unknown."""

    fit: Fit | None
    reason: Reason
    message: str

    @property
    def is_good(self) -> bool:
        return self.fit is not None and self.fit.fits


def find_fit(pool: InferencePool, shape: ModelShape, nodes: tuple[Node, ...] | None) -> FitFinding:
    """Sizing for one replica of the pool."""
    memory_bytes = device_memory_bytes(pool, nodes)
    if memory_bytes is None:
        return FitFinding(None, Reason.MEMORY_UNKNOWN, _unknown_memory(pool, nodes))
    fit = plan_fit(shape, target(pool, memory_bytes), demand(pool), storage(pool, shape))
    if not fit.fits:
        return FitFinding(fit, Reason.DOES_NOT_FIT, _with_remedies(pool, fit))
    if fit.context < fit.context_wanted:
        return FitFinding(fit, Reason.SHRUNK_TO_FIT, _with_remedies(pool, fit))
    return FitFinding(fit, Reason.FITS, _numbers(fit))


def target(pool: InferencePool, memory_bytes: int) -> Target:
    return Target(device=Device.CPU if pool.spec.accelerator.is_cpu else Device.CUDA, memory_bytes=memory_bytes)


def kv_dtype(pool: InferencePool) -> KvDtype:
    """The spec's word as the engine's."""
    return _KV_DTYPES[pool.spec.model.kv_cache_dtype]


def quantization(pool: InferencePool) -> Quantization | None:
    """The spec's word as the engine's."""
    return _QUANTIZATIONS[pool.spec.model.quantization]


def storage(pool: InferencePool, shape: ModelShape) -> Storage:
    """How the pool's engines keep the model."""
    return storage_of(shape, kv_dtype(pool), quantization(pool))


def demand(pool: InferencePool) -> Demand:
    spec = pool.spec
    return Demand(
        context_max=spec.context.max,
        context_min=spec.context.min,
        prompt_tokens=spec.traffic.prompt_tokens,
        output_tokens=spec.traffic.output_tokens,
    )


def device_memory_bytes(pool: InferencePool, nodes: tuple[Node, ...] | None) -> int | None:
    """CPU: the pod's limit. Else the spec's word, else the smallest device on nodes where the pool may run."""
    if pool.spec.accelerator.is_cpu:
        return parse_bytes(pool.spec.pod.resources.limits["memory"])
    if pool.spec.accelerator.memory:
        return parse_bytes(pool.spec.accelerator.memory)
    found = [_node_memory_bytes(node) for node in candidates(pool, nodes or ())]
    known = [memory for memory in found if memory is not None]
    return min(known) if known and len(known) == len(found) else None


def model_status(shape: ModelShape, fit: Fit) -> ModelStatus:
    return ModelStatus(
        architecture=shape.architecture,
        parameters=shape.num_parameters,
        weight_bytes=fit.weight_bytes,
        kv_bytes_per_token=fit.kv_bytes_per_token,
        max_context=shape.max_context,
        fingerprint=shape.fingerprint,
    )


def sizing_status(pool: InferencePool, fit: Fit) -> SizingStatus:
    return SizingStatus(
        fits=fit.fits,
        binding_constraint=fit.binding_constraint,
        remedies=_remedies(pool, fit),
        memory_bytes=fit.memory_bytes,
        runtime_bytes=fit.runtime_bytes,
        activation_bytes=fit.activation_bytes,
        logits_bytes=fit.logits_bytes,
        reserve_bytes=fit.reserve_bytes,
        loading_bytes=fit.loading_bytes,
        weight_bytes=fit.per_gpu_weight_bytes,
        kv_bytes_per_token=fit.per_gpu_kv_bytes_per_token,
        kv_fixed_bytes_per_sequence=fit.kv_fixed_bytes_per_sequence,
        kv_blocks=fit.kv_blocks,
        context=fit.context,
        slots=fit.slots,
        tensor_parallel=fit.tensor_parallel,
        resident_bytes=fit.resident_bytes,
    )


def _node_memory_bytes(node: Node) -> int | None:
    if label := node.labels.get(MEMORY_LABEL):
        return int(label) * _MIB if label.isdecimal() else None
    try:
        return find_accelerator(node.labels.get(PRODUCT_LABEL, "")).memory_bytes
    except UnknownAccelerator:
        return None


def _unknown_memory(pool: InferencePool, nodes: tuple[Node, ...] | None) -> str:
    resource = pool.spec.accelerator.resource
    if nodes is None:
        cause = "the operator may not look at nodes"
    elif not candidates(pool, nodes):
        return (
            f"no node that the pool may use has {resource}; add such a node, or set accelerator.resource: cpu; "
            "accelerator.memory only tells the size"
        )
    else:
        cause = f"a node with {resource} has neither the label {MEMORY_LABEL} nor a known {PRODUCT_LABEL}"
    return f"the memory of {resource} is not known: {cause}; set accelerator.memory, such as 24Gi"


def _with_remedies(pool: InferencePool, fit: Fit) -> str:
    ways = "; ".join(_remedies(pool, fit))
    return f"{_numbers(fit)}. What would help: {ways}" if ways else _numbers(fit)


def _numbers(fit: Fit) -> str:
    """The statement without its verdict, which is the condition's reason already."""
    return statement(fit).removeprefix("fits: ").removeprefix("does not fit: ")


def _remedies(pool: InferencePool, fit: Fit) -> tuple[str, ...]:
    """Those that a person can carry out come first, each naming its field; then those that sizing can only price."""
    named = [_in_the_spec(pool, remedy) for remedy in fit.remedies]
    others = [remedy.description for remedy, words in zip(fit.remedies, named, strict=True) if not words]
    return (*filter(None, named), *others)


def _in_the_spec(pool: InferencePool, remedy: Remedy) -> str:
    """Empty where no field of the spec does it."""
    action = remedy.description.partition(": ")[0]
    slots = "1 slot" if remedy.slots == 1 else f"{remedy.slots:,} slots"
    gives = f"(context {remedy.context:,}, {slots})"
    match remedy.kind:
        case RemedyKind.MORE_MEMORY if pool.spec.accelerator.is_cpu:
            return f"set pod.resources.limits.memory to {action.removesuffix(' of memory')} {gives}"
        case RemedyKind.MORE_MEMORY | RemedyKind.LARGER_GPU:
            told = " and tell its size in accelerator.memory" if pool.spec.accelerator.memory else ""
            return f"choose nodes with {action} by pod.nodeSelector{told} {gives}"
        case RemedyKind.KV_8BIT:
            return f"set model.kvCacheDtype to {KvCacheDtype.INT8} {gives}"
        case RemedyKind.WEIGHTS_8BIT:
            return f"set model.quantization to {WeightQuantization.INT8} {gives}"
        case RemedyKind.BOTH_8BIT:
            return f"set model.quantization and model.kvCacheDtype to {WeightQuantization.INT8} {gives}"
        case RemedyKind.SMALLER_CONTEXT if not remedy.slots:  # the model allows it, the device needs more than that
            return f"set context.min to at most {remedy.context}"
        case RemedyKind.SMALLER_CONTEXT:
            return f"set context.min to {remedy.context} {gives}"
        case _:
            return ""
