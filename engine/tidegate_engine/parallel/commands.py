"""What the first process tells the others, and what these answer: one value each, over a pipe.

    Load      --> Loaded      every share is in memory
    Allocate  --> Allocated   and has its KV pool
    Step                      hidden states of a step, computed together
    Logits                    of some rows of them

A step goes as arrays, since they are made once and pickle as fast as memory is copied.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import torch

from tidegate_core.launch import EngineLaunch
from tidegate_engine.attention.base import AttentionInputs
from tidegate_engine.compute.step_tensors import StepTensors

Array = np.ndarray


class Load(NamedTuple):
    """`memory_bytes` of each device; None: what there is. All meet at `rendezvous`."""

    launch: EngineLaunch
    path: Path
    memory_bytes: int | None
    rendezvous: Path


class Loaded(NamedTuple):
    """What a device has, and what of it is taken once its weights are there."""

    memory_bytes: int
    used_bytes: int


class Allocate(NamedTuple):
    num_blocks: int


class Allocated(NamedTuple):
    """Private memory of the process on the host, with blocks that are still to be written."""

    resident_bytes: int


class Logits(NamedTuple):
    num_rows: int


class Step(NamedTuple):
    """StepTensors without torch; the last two have an entry for each KV group."""

    token_ids: Array
    positions: Array
    query_start: Array
    context_lens: Array
    max_query: int
    max_context: int
    block_tables: tuple[Array, ...]
    slot_mappings: tuple[Array, ...]

    @classmethod
    def of(cls, tensors: StepTensors) -> Self:
        """Of tensors on the CPU."""
        first = tensors.attention[0]
        return cls(
            tensors.token_ids.numpy(),
            tensors.positions.numpy(),
            first.query_start.numpy(),
            first.context_lens.numpy(),
            first.max_query,
            first.max_context,
            tuple(inputs.block_tables.numpy() for inputs in tensors.attention),
            tuple(inputs.slot_mapping.numpy() for inputs in tensors.attention),
        )

    def on(self, device: torch.device) -> StepTensors:
        """As every process computes with it."""
        query_start, context_lens = _tensors((self.query_start, self.context_lens), device)
        tables, slots = _tensors(self.block_tables, device), _tensors(self.slot_mappings, device)
        inputs = tuple(
            AttentionInputs(query_start, context_lens, table, slot, self.max_query, self.max_context)
            for table, slot in zip(tables, slots, strict=True)
        )
        token_ids, positions = _tensors((self.token_ids, self.positions), device)
        return StepTensors(token_ids, positions, inputs)


def _tensors(arrays: Sequence[Array], device: torch.device) -> tuple[torch.Tensor, ...]:
    return tuple(torch.from_numpy(array).to(device) for array in arrays)
