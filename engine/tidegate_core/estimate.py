"""From a model, a device and a demand to a Fit: every term, the constraint that binds, and the load it bears.

`sizing.plan_fit` calls it for the case at hand, `remedies` for variants of it.
"""

from dataclasses import dataclass, replace
from functools import cached_property

from tidegate_core.accelerator import Device
from tidegate_core.fit import DEVICE_COUNTS, BlockPlan, Constraint, Demand, Fit, Target
from tidegate_core.kv import can_divide_heads, kv_bytes_per_token, kv_demand, kv_fixed_bytes_per_sequence, kv_read_bytes
from tidegate_core.memory import (
    PROCESS_BYTES,
    Overhead,
    loading_bytes,
    loading_floor_bytes,
    overhead_of,
    process_bytes,
    read_bytes_per_step,
    weight_bytes,
)
from tidegate_core.shape import ModelShape
from tidegate_core.solve import plan_blocks, smallest_context, wanted_context
from tidegate_core.storage import Storage


@dataclass(frozen=True)
class Case:
    """One question of sizing: this model, kept like this, on this device, for this demand."""

    shape: ModelShape
    target: Target
    demand: Demand
    storage: Storage
    more: tuple[Target, ...] = ()  # the same on more devices, which a remedy may offer

    @property
    def is_divisible(self) -> bool:
        """Whether the model can be split between so many devices."""
        num_devices = self.target.tensor_parallel
        return num_devices in DEVICE_COUNTS and can_divide_heads(self.shape, num_devices)

    @cached_property
    def overhead(self) -> Overhead:
        """Bytes of one device that hold neither weights nor KV; what was measured beyond the estimate is runtime."""
        estimated = overhead_of(self.shape, self.target)
        learned = (self.target.loaded_percent - 100) * (estimated.runtime + self.weight_bytes) // 100
        return replace(estimated, runtime=max(0, estimated.runtime + learned))

    @cached_property
    def weight_bytes(self) -> int:
        """Weights of one device."""
        return weight_bytes(self.shape, self.storage, self.target.device, self.target.tensor_parallel)

    @cached_property
    def loading_floor_bytes(self) -> int:
        """The least memory in which the weights can be loaded."""
        return loading_floor_bytes(self.shape, self.target, self.storage)

    @cached_property
    def kv_bytes_per_token(self) -> int:
        """KV of one token on one device."""
        return kv_bytes_per_token(self.shape, self.storage.kv_width, self.target.tensor_parallel)

    @cached_property
    def plan(self) -> BlockPlan:
        """The KV pool in what is left."""
        free_bytes = self.target.memory_bytes - self.overhead.total - self.weight_bytes
        return plan_blocks(self.shape, self.target, self.demand, free_bytes, self.storage)


def estimate(case: Case) -> Fit:
    """A Fit with everything but remedies."""
    constraint = _binding_constraint(case)
    fits = constraint in {Constraint.SLOTS, Constraint.KV_MEMORY} and case.plan.slots > 0
    slots = case.plan.slots if fits else 0
    smallest = smallest_context(case.shape, case.demand)
    return Fit(
        memory_bytes=case.target.memory_bytes,
        unused_share_bytes=case.overhead.unused_share,
        runtime_bytes=case.overhead.runtime,
        collectives_bytes=case.overhead.collectives,
        activation_bytes=case.overhead.activation,
        logits_bytes=case.overhead.logits,
        graphs_bytes=case.overhead.graphs,
        reserve_bytes=case.overhead.reserve,
        per_gpu_weight_bytes=case.weight_bytes,
        kv_pool_bytes=case.plan.pool_bytes,
        loading_bytes=loading_bytes(case.shape, case.target.device),
        weight_bytes=weight_bytes(case.shape, case.storage, case.target.device),
        kv_bytes_per_token=kv_bytes_per_token(case.shape, case.storage.kv_width),
        kv_fixed_bytes_per_sequence=kv_fixed_bytes_per_sequence(case.shape, case.storage.kv_width),
        per_gpu_kv_bytes_per_token=case.kv_bytes_per_token,
        kv_blocks=case.plan.num_blocks,
        context=case.plan.context,
        context_wanted=wanted_context(case.shape, case.demand),
        context_smallest=smallest,
        smallest_kv_bytes=kv_demand(case.shape).prefilling_blocks(smallest) * case.plan.block_bytes,
        slots=slots,
        tensor_parallel=case.target.tensor_parallel,
        resident_bytes=_resident_bytes(case),
        fits=fits,
        binding_constraint=constraint,
        offered_requests=_offered_requests(case.demand),
        tokens_per_second_ceiling=_token_rate(case, num_running=slots),
        stream_tokens_per_second_ceiling=_token_rate(case, num_running=min(slots, 1)),
    )


def _binding_constraint(case: Case) -> Constraint:
    if not case.is_divisible:
        return Constraint.TENSOR_PARALLEL
    if smallest_context(case.shape, case.demand) > wanted_context(case.shape, case.demand):
        return Constraint.MODEL_CONTEXT
    if case.plan.slots > 0 and case.loading_floor_bytes > case.target.memory_bytes:
        return Constraint.LOADING
    if case.plan.slots > 0:
        return Constraint.SLOTS if case.plan.slots == case.demand.max_slots else Constraint.KV_MEMORY
    if case.overhead.total >= case.target.memory_bytes:
        return Constraint.OVERHEAD
    return Constraint.KV_MEMORY if case.plan.num_blocks > 0 else Constraint.WEIGHTS


def _resident_bytes(case: Case) -> int:
    """On CPU the process is the device; on CUDA only what driver and Python take remains on the host.

    Each further device has a process of its own, which reads no text.
    """
    host_bytes = process_bytes(case.shape, case.target.device)
    host_bytes += (case.target.tensor_parallel - 1) * PROCESS_BYTES[case.target.device]
    if case.target.device == Device.CPU:
        host_bytes += case.weight_bytes + case.plan.pool_bytes
    return host_bytes


def _offered_requests(demand: Demand) -> float | None:
    """Little's law: requests in flight = users x seconds in generation / seconds between questions."""
    if demand.users is None or demand.generation_seconds is None or demand.turn_seconds is None:
        return None
    return demand.users * demand.generation_seconds / demand.turn_seconds


def _token_rate(case: Case, *, num_running: int) -> float | None:
    """Tokens a second that memory bandwidth allows: a step reads the weights once and every running sequence's KV."""
    target, demand = case.target, case.demand
    if target.bandwidth is None or num_running == 0:
        return None
    kv_tokens = min(demand.prompt_tokens + demand.output_tokens // 2, case.plan.context)  # halfway through an answer
    step_bytes = read_bytes_per_step(case.shape, case.storage, target.device, target.tensor_parallel)
    step_bytes += num_running * kv_read_bytes(case.shape, case.storage.kv_width, kv_tokens, target.tensor_parallel)
    return num_running * target.bandwidth / step_bytes
