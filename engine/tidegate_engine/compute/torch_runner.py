"""Runs steps with a real model, on CPU or CUDA: the torch side of the seam in runner.py.

    StepBatch -> tensors -> hidden states -> rows that are sampled -> logits -> tokens

Built by TorchRunner.load in the loading thread, used by the engine loop's thread alone.
"""

import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, Self

import torch

from tidegate_core.accelerator import Device
from tidegate_core.errors import BadLaunch
from tidegate_core.launch import EngineLaunch
from tidegate_core.memory import LOGITS_ROWS
from tidegate_core.sizing import BLOCK_SIZE, BlockPlan
from tidegate_engine.attention.base import choose_attention
from tidegate_engine.compute.kv_cache import KvCache
from tidegate_engine.compute.kv_dtype import check_kv_dtype
from tidegate_engine.compute.row_outputs import RowOutputs
from tidegate_engine.compute.shard import Shard
from tidegate_engine.compute.torch_loading import LoadedModel, load, plan_pool
from tidegate_engine.parallel.crew import Crew
from tidegate_engine.parallel.leader import load_together
from tidegate_engine.request import SamplingParams
from tidegate_engine.runner import RowResult, ScheduledRow, StepBatch

WARM_UP_TOKENS = 2 * BLOCK_SIZE


class Computing(Protocol):
    """A Shard, or the Leader of several."""

    followers_bytes: int

    @property
    def cache(self) -> KvCache: ...

    def hidden(self, rows: Sequence[ScheduledRow]) -> torch.Tensor: ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor: ...


class TorchRunner:
    """Implements Runner. Greedy and seeded answers do not depend on what else is in a batch."""

    is_simulation = False

    def __init__(self, loaded: LoadedModel, plan: BlockPlan, computing: Computing, entropy: bytes) -> None:
        """`computing` is done by one device, or by several; `entropy` seeds requests that bring no seed."""
        self.plan = plan
        self.cache = computing.cache
        self.num_blocks = self.cache.num_blocks
        self.block_size = self.cache.block_size
        self.kv_windows = loaded.kv_groups.windows
        self.vocab_size = loaded.shape.vocab_size
        self.weight_bytes = loaded.weight_bytes
        self.loaded_bytes = loaded.used_bytes
        self.followers_bytes = computing.followers_bytes
        self.warm_up_seconds = 0.0
        self._computing = computing
        self._outputs = RowOutputs(
            computing.logits,
            num_rows=LOGITS_ROWS[Device(loaded.device.type)],
            vocab_size=self.vocab_size,
            entropy=entropy,
        )

    @classmethod
    def load(
        cls, launch: EngineLaunch, path: Path, *, memory_bytes: int | None = None, crew: Crew | None = None
    ) -> Self:
        """Loads, allocates the KV pool and computes a first step, so that requests meet a warm engine.

        `memory_bytes` of a device; None: the container's or the card's. `crew`: the processes of the other devices.
        Raises BadLaunch, CheckpointError, DoesNotFit or FollowerLost.
        """
        check_devices(launch)
        assert (crew.size if crew else 1) == launch.tensor_parallel
        computing: Computing
        if crew is not None:
            loaded, plan, computing = load_together(launch, path, crew, memory_bytes)
        else:
            loaded = load(launch, path, memory_bytes)
            plan = plan_pool(launch, loaded)
            computing = Shard.of(launch, loaded, plan.num_blocks)
        runner = cls(loaded, plan, computing, secrets.token_bytes(16))
        started = time.perf_counter()
        runner.warm_up()
        runner.warm_up_seconds = time.perf_counter() - started
        return runner

    def run(self, batch: StepBatch) -> tuple[RowResult, ...]:
        """See Runner.run."""
        with torch.inference_mode():
            return self._outputs.of(batch.rows, self._computing.hidden(batch.rows))

    def warm_up(self) -> None:
        """A prefill and a decode: first calls allocate workspaces, on CUDA they also compile and load kernels."""
        num_tokens = min(WARM_UP_TOKENS, self.num_blocks * self.block_size - 1)
        num_blocks = -(-(num_tokens + 1) // self.block_size)
        tables = (tuple(range(num_blocks)),) * len(self.kv_windows)  # their mixed-up contents nobody reads
        greedy = SamplingParams(max_tokens=2, temperature=0.0)
        self.run(StepBatch((ScheduledRow("warm-up", (0,) * num_tokens, 0, tables, greedy, 0),)))
        self.run(StepBatch((ScheduledRow("warm-up", (0,), num_tokens, tables, greedy, 1),)))


def check_devices(launch: EngineLaunch) -> None:
    """Whether what is asked for can be had on the devices there are. Raises BadLaunch."""
    choose_attention(launch.attention, launch.device)
    if launch.tensor_parallel > 1 and launch.deterministic:
        raise BadLaunch("--deterministic is for one device: a sum over several depends on how it is cut")
    if launch.device is Device.CUDA:
        check_gpus(launch, torch.cuda.device_count())
    capability = torch.cuda.get_device_capability() if launch.device is Device.CUDA else None
    check_kv_dtype(launch.kv_dtype, launch.device, capability)


def check_gpus(launch: EngineLaunch, num_visible: int) -> None:
    """Of a launch on GPUs. Raises BadLaunch."""
    if launch.quantization is not None:
        raise BadLaunch(f"--quantization {launch.quantization} is for --device cpu: leave it out on a GPU")
    if launch.deterministic:
        raise BadLaunch("--deterministic is for --device cpu: on a GPU products still depend on the batch")
    if num_visible == 0:
        raise BadLaunch("--device cuda, but no NVIDIA GPU is visible here: ask for one, or give --device cpu")
    if num_visible < launch.tensor_parallel:
        raise BadLaunch(
            f"--tensor-parallel {launch.tensor_parallel}, but {num_visible} GPUs are visible here: ask for as many"
        )
