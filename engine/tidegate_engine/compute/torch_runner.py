"""Runs steps with a real model, on CPU or CUDA: the torch side of the seam in runner.py.

    StepBatch -> tensors -> hidden states -> rows that are sampled -> logits -> tokens

Built by TorchRunner.load in the loading thread, used by the engine loop's thread alone.
"""

import secrets
import time
from pathlib import Path
from typing import Self

import torch

from tidegate_core.accelerator import Device
from tidegate_core.errors import BadLaunch
from tidegate_core.launch import AttentionKind, EngineLaunch
from tidegate_core.memory import LOGITS_ROWS
from tidegate_core.sizing import BLOCK_SIZE, BlockPlan
from tidegate_engine.attention.base import Attention, choose_attention
from tidegate_engine.compute.kv_cache import KvCache, PagedStep
from tidegate_engine.compute.kv_dtype import check_kv_dtype
from tidegate_engine.compute.row_outputs import RowOutputs
from tidegate_engine.compute.step_tensors import step_tensors
from tidegate_engine.compute.torch_loading import LoadedModel, load, plan_pool
from tidegate_engine.request import SamplingParams
from tidegate_engine.runner import RowResult, ScheduledRow, StepBatch

WARM_UP_TOKENS = 2 * BLOCK_SIZE


class TorchRunner:
    """Implements Runner. Greedy and seeded answers do not depend on what else is in a batch."""

    is_simulation = False

    def __init__(
        self, loaded: LoadedModel, plan: BlockPlan, cache: KvCache, attention: Attention, entropy: bytes
    ) -> None:
        """`entropy` seeds requests that bring no seed."""
        self.plan = plan
        self.cache = cache
        self.num_blocks = cache.num_blocks
        self.block_size = cache.block_size
        self.kv_windows = loaded.kv_groups.windows
        self.vocab_size = loaded.shape.vocab_size
        self.weight_bytes = loaded.weight_bytes
        self.loaded_bytes = loaded.used_bytes
        self.warm_up_seconds = 0.0
        self._model = loaded.model
        self._places = loaded.kv_groups.places(loaded.layer_windows)
        self._device = loaded.device
        self._outputs = RowOutputs(
            loaded.model.logits,
            num_rows=LOGITS_ROWS[Device(loaded.device.type)],
            vocab_size=self.vocab_size,
            entropy=entropy,
        )
        self._attention = attention

    @classmethod
    def load(cls, launch: EngineLaunch, path: Path, *, memory_bytes: int | None = None) -> Self:
        """Loads, allocates the KV pool and computes a first step, so that requests meet a warm engine.

        `memory_bytes` of the device; None: the container's or the card's.
        Raises BadLaunch, CheckpointError or DoesNotFit.
        """
        kind = choose_attention(launch.attention, launch.device)
        if launch.device is Device.CUDA and launch.quantization is not None:
            raise BadLaunch(f"--quantization {launch.quantization} is for --device cpu: leave it out on a GPU")
        if launch.device is Device.CUDA and launch.deterministic:
            raise BadLaunch("--deterministic is for --device cpu: on a GPU products still depend on the batch")
        if launch.device is Device.CUDA and not torch.cuda.is_available():
            raise BadLaunch("--device cuda, but no NVIDIA GPU is visible here: ask for one, or give --device cpu")
        capability = torch.cuda.get_device_capability() if launch.device is Device.CUDA else None
        check_kv_dtype(launch.kv_dtype, launch.device, capability)
        loaded = load(launch, path, memory_bytes)
        plan = plan_pool(launch, loaded)
        cache = loaded.kv_layout.allocate(plan.num_blocks, loaded.device)
        attention = attention_for(kind, loaded.device, is_deterministic=launch.deterministic)
        runner = cls(loaded, plan, cache, attention, secrets.token_bytes(16))
        started = time.perf_counter()
        runner.warm_up()
        runner.warm_up_seconds = time.perf_counter() - started
        return runner

    def run(self, batch: StepBatch) -> tuple[RowResult, ...]:
        """See Runner.run."""
        with torch.inference_mode():
            return self._outputs.of(batch.rows, self._hidden(batch))

    def warm_up(self) -> None:
        """A prefill and a decode: first calls allocate workspaces, on CUDA they also compile and load kernels."""
        num_tokens = min(WARM_UP_TOKENS, self.num_blocks * self.block_size - 1)
        num_blocks = -(-(num_tokens + 1) // self.block_size)
        tables = (tuple(range(num_blocks)),) * len(self.kv_windows)  # their mixed-up contents nobody reads
        greedy = SamplingParams(max_tokens=2, temperature=0.0)
        self.run(StepBatch((ScheduledRow("warm-up", (0,) * num_tokens, 0, tables, greedy, 0),)))
        self.run(StepBatch((ScheduledRow("warm-up", (0,), num_tokens, tables, greedy, 1),)))

    def _hidden(self, batch: StepBatch) -> torch.Tensor:
        tensors = step_tensors(batch.rows, self.block_size, self._device)
        step = PagedStep(self.cache, self._places, tensors.attention, self._attention)
        return self._model.hidden(tensors.token_ids, tensors.positions, step)


def attention_for(kind: AttentionKind, device: torch.device, *, is_deterministic: bool) -> Attention:
    """The implementation; Triton is imported only where it is used, since it needs a GPU or its interpreter."""
    if kind is AttentionKind.TRITON:
        from tidegate_engine.attention.triton import TritonAttention

        return TritonAttention(torch.cuda.get_device_properties(device).multi_processor_count)
    from tidegate_engine.attention import decodes, deterministic, reference

    if is_deterministic:
        return deterministic.attend
    return reference.attend if kind is AttentionKind.REFERENCE else decodes.attend
