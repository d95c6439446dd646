"""The first device's side of computing together: tells the others each thing that all do, then does it with them.

    rows --checked, made tensors--> Step --> hidden states on all --> Logits, chunk by chunk --> sampled here alone

What fails before a command is sent, or between two, concerns this process only: the others wait for the next command,
so the engine may run parts of the batch again. What fails inside a command leaves the others where nobody can fetch
them from: it ends the engine (EngineFailed), whoever's fault it was.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from tidegate_checkpoint.shape import read_shape
from tidegate_core.launch import EngineLaunch
from tidegate_core.sizing import BlockPlan
from tidegate_engine.compute.kv_cache import KvCache
from tidegate_engine.compute.shard import Shard
from tidegate_engine.compute.step_tensors import step_tensors
from tidegate_engine.compute.torch_loading import LoadedModel, load, plan_pool
from tidegate_engine.parallel.commands import Allocate, Allocated, Load, Loaded, Logits, Step
from tidegate_engine.parallel.crew import Crew
from tidegate_engine.parallel.group import DeviceGroup, join
from tidegate_engine.parallel.share import Share, check_divisible
from tidegate_engine.runner import ScheduledRow

CPU = torch.device("cpu")


class Leader:
    """Computes like a Shard, only on all devices."""

    def __init__(self, crew: Crew, group: DeviceGroup, shard: Shard, vocab_size: int, followers_bytes: int) -> None:
        self.followers_bytes = followers_bytes  # private memory of the other processes
        self._crew = crew
        self._group = group
        self._shard = shard
        self._vocab_size = vocab_size

    @property
    def cache(self) -> KvCache:
        """This device's."""
        return self._shard.cache

    def hidden(self, rows: Sequence[ScheduledRow]) -> torch.Tensor:
        """See Shard.hidden."""
        tensors = step_tensors(rows, self.cache.block_size, CPU)
        if int(tensors.token_ids.max()) >= self._vocab_size or int(tensors.token_ids.min()) < 0:
            raise IndexError(f"a token is outside of the vocabulary of {self._vocab_size}")
        step = Step.of(tensors)
        with self._together(step):
            return self._shard.hidden_of(step.on(self._shard.device))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See Shard.logits."""
        with self._together(Logits(len(hidden))):
            return self._shard.logits(self._group.told(hidden))

    @contextmanager
    def _together(self, command: object) -> Iterator[None]:
        self._crew.check()
        self._crew.send(command)
        try:
            yield
        except Exception as error:
            raise self._crew.failed(error) from error


def load_together(
    launch: EngineLaunch, path: Path, crew: Crew, memory_bytes: int | None
) -> tuple[LoadedModel, BlockPlan, Leader]:
    """The model as the tightest device has it, and the blocks for which every device has room.

    Raises BadLaunch, CheckpointError, DoesNotFit or FollowerLost.
    """
    check_divisible(read_shape(path), launch.tensor_parallel)
    crew.send(Load(launch, path, memory_bytes, crew.rendezvous))
    group = join(Share(0, crew.size), launch.device, crew.rendezvous)
    loaded = load(launch, path, memory_bytes, group)
    tightest = _tightest(loaded, [report for report in crew.receive() if isinstance(report, Loaded)])
    plan = plan_pool(launch, tightest)
    crew.send(Allocate(plan.num_blocks))
    shard = Shard.of(launch, loaded, plan.num_blocks)
    followers_bytes = sum(report.resident_bytes for report in crew.receive() if isinstance(report, Allocated))
    return tightest, plan, Leader(crew, group, shard, loaded.shape.vocab_size, followers_bytes)


def _tightest(loaded: LoadedModel, others: Sequence[Loaded]) -> LoadedModel:
    own = Loaded(loaded.target.memory_bytes, loaded.used_bytes)
    least = min((own, *others), key=lambda device: device.memory_bytes - device.used_bytes)
    target = replace(loaded.target, memory_bytes=least.memory_bytes)
    return replace(loaded, target=target, used_bytes=least.used_bytes)
