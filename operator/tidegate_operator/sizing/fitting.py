"""Whether and how a pool's model fits its device. Pure.

Takes the devices from devices.py, asks tidegate_core.sizing and says its answer in words and in the spec's fields.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

from tidegate_core.accelerator import Device
from tidegate_core.devices import Spread
from tidegate_core.fit import Constraint, Demand, Fit, Option, Remedy, RemedyKind, Target
from tidegate_core.quantity import format_bytes
from tidegate_core.shape import ModelShape
from tidegate_core.sizing import plan_replica
from tidegate_core.storage import KvDtype, Quantization, Storage, storage_of
from tidegate_operator.api.model import KvCacheDtype, WeightQuantization
from tidegate_operator.api.reasons import Reason
from tidegate_operator.api.status import ModelStatus, SizingBasis, SizingOption, SizingStatus
from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.sizing.devices import PoolDevice, PoolDevices, UnknownDevice, find_devices
from tidegate_operator.sizing.experience import NO_EXPERIENCE, Experience
from tidegate_operator.world.observed import Node

_KV_DTYPES = {None: KvDtype.AUTO, KvCacheDtype.INT8: KvDtype.INT8, KvCacheDtype.FP8: KvDtype.FP8}
_QUANTIZATIONS = {None: None, WeightQuantization.INT8: Quantization.INT8}


@dataclass(frozen=True)
class FitFinding:
    """`fit` is None while the device's memory is unknown."""

    fit: Fit | None
    reason: Reason
    message: str
    device: PoolDevice | None = None
    basis: SizingBasis | None = None

    @property
    def is_good(self) -> bool:
        return self.fit is not None and self.fit.fits


def find_fit(
    pool: InferencePool, shape: ModelShape, nodes: tuple[Node, ...] | None, experience: Experience = NO_EXPERIENCE
) -> FitFinding:
    """Sizing for one replica of the pool, with what engines like it have measured."""
    devices = find_devices(pool, nodes, experience.num_devices)
    if isinstance(devices, UnknownDevice):
        return FitFinding(None, Reason.MEMORY_UNKNOWN, devices.message)
    fit = plan_cached(shape, _spread(pool, shape, devices, experience), demand(pool), storage(pool, shape))
    if devices.are_parts and not fit.fits and fit.binding_constraint is not Constraint.MODEL_CONTEXT:
        fit = _not_joined(fit, devices.node_of_parts)
    device = devices.of(fit.tensor_parallel)
    reason = (
        Reason.DOES_NOT_FIT if not fit.fits
        else Reason.SHRUNK_TO_FIT if fit.context < fit.context_wanted
        else Reason.FITS
    )  # fmt: skip
    spared = "" if devices.asked or not fit.fits else _fewer_of_the_largest(pool, shape, devices, fit)
    said = "; ".join(filter(None, (_numbers(fit), device.difference, spared)))
    ways = "" if reason is Reason.FITS else "; ".join(_remedies(pool, fit))
    message = said + (f". What would help: {ways}" if ways else "")
    return FitFinding(fit, reason, message, device, _basis(pool, shape, device, experience))


def _spread(pool: InferencePool, shape: ModelShape, devices: PoolDevices, experience: Experience) -> Spread:
    """Each number of devices with what engines on so many have measured."""

    def on(device: PoolDevice) -> Target:
        return target(pool, device, _basis(pool, shape, device, experience).loaded_percent)

    asked = None if devices.asked is None else on(devices.asked)
    return Spread(tuple(map(on, devices.choices)), asked, 1 if devices.are_parts else devices.most_on_a_node)


def _fewer_of_the_largest(pool: InferencePool, shape: ModelShape, devices: PoolDevices, fit: Fit) -> str:
    """Where nodes differ, those with small devices make a replica take several of the large ones."""
    for each in devices.choices:
        if each.num_devices < fit.tensor_parallel and each.selector:
            largest = target(pool, replace(each, memory_bytes=each.largest_bytes))
            if plan_cached(shape, Spread((largest,)), demand(pool), storage(pool, shape)).fits:
                size = format_bytes(each.largest_bytes)
                return f"{each.num_devices} of {size} would do with pod.nodeSelector {each.selector}"
    return ""


def _basis(pool: InferencePool, shape: ModelShape, device: PoolDevice, experience: Experience) -> SizingBasis:
    basis = SizingBasis(
        architecture=shape.architecture,
        dtype=quantization(pool) or shape.dtype,
        accelerator=device.name,
        tensor_parallel=device.num_devices,
    )
    return basis.model_copy(update={"loaded_percent": experience.percent(basis)})


@lru_cache(maxsize=2048)  # the same question comes with every look at a pool
def plan_cached(shape: ModelShape, spread: Spread, asked: Demand, kept: Storage) -> Fit:
    """As plan_replica."""
    return plan_replica(shape, spread, asked, kept)


def target(pool: InferencePool, device: PoolDevice, loaded_percent: int = 100) -> Target:
    return Target(
        device=Device.CPU if pool.spec.accelerator.is_cpu else Device.CUDA,
        memory_bytes=device.memory_bytes,
        tensor_parallel=device.num_devices,
        loaded_percent=loaded_percent,
    )


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


def model_status(shape: ModelShape, fit: Fit) -> ModelStatus:
    return ModelStatus(
        architecture=shape.architecture,
        parameters=shape.num_parameters,
        weight_bytes=fit.weight_bytes,
        kv_bytes_per_token=fit.kv_bytes_per_token,
        max_context=shape.max_context,
        fingerprint=shape.fingerprint,
    )


def sizing_status(pool: InferencePool, fit: Fit, basis: SizingBasis | None) -> SizingStatus:
    return SizingStatus(
        fits=fit.fits,
        binding_constraint=fit.binding_constraint,
        remedies=_remedies(pool, fit),
        smaller=_option(fit.smaller),
        larger=_option(fit.larger),
        basis=basis,
        memory_bytes=fit.memory_bytes,
        unused_share_bytes=fit.unused_share_bytes,
        runtime_bytes=fit.runtime_bytes,
        collectives_bytes=fit.collectives_bytes,
        activation_bytes=fit.activation_bytes,
        logits_bytes=fit.logits_bytes,
        graphs_bytes=fit.graphs_bytes,
        reserve_bytes=fit.reserve_bytes,
        loading_bytes=fit.loading_bytes,
        weight_bytes=fit.per_gpu_weight_bytes,
        kv_bytes_per_token=fit.per_gpu_kv_bytes_per_token,
        kv_fixed_bytes_per_sequence=fit.kv_fixed_bytes_per_sequence,
        kv_pool_bytes=fit.kv_pool_bytes,
        kv_blocks=fit.kv_blocks,
        context=fit.context,
        slots=fit.slots,
        tensor_parallel=fit.tensor_parallel,
        resident_bytes=fit.resident_bytes,
    )


def _option(option: Option | None) -> SizingOption | None:
    if option is None:
        return None
    return SizingOption(name=option.name, memory_bytes=option.memory_bytes, context=option.context, slots=option.slots)


def _numbers(fit: Fit) -> str:
    """The statement without its verdict, which is the condition's reason already."""
    return fit.statement.removeprefix("fits: ").removeprefix("does not fit: ")


def _not_joined(fit: Fit, node_of_parts: str) -> Fit:
    """In other words than those for whole devices: a node may have as many slices, and that helps nobody."""
    asked = f"does not fit: {fit.tensor_parallel} devices are asked for"
    said = asked if fit.binding_constraint is Constraint.DEVICES else fit.statement
    joined = "slices or shares of a GPU cannot be joined: one must hold the model"
    if node_of_parts:
        joined += f", or pod.nodeSelector leave out node {node_of_parts} and its like, where others have whole ones"
    return replace(fit, statement=f"{said}; {joined}", devices_there=None)


def _remedies(pool: InferencePool, fit: Fit) -> tuple[str, ...]:
    """Those that a person can carry out come first, each naming its field; then those that sizing can only price."""
    named = [_in_the_spec(pool, remedy) for remedy in fit.remedies]
    others = [remedy.description for remedy, words in zip(fit.remedies, named, strict=True) if not words]
    if fit.binding_constraint is Constraint.DEVICES and fit.devices_there is not None:
        named.append(f"set accelerator.count to {fit.tensor_parallel} where nodes with so many are made on demand")
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
        case RemedyKind.MORE_GPUS | RemedyKind.FEWER_GPUS:
            return f"set accelerator.count to {action.partition(' ')[0]} {gives}"
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
