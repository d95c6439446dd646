"""A scheduled step as tensors: token ids, positions, and where keys and values lie. Built once a step by the runner."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from tidegate_engine.attention.base import AttentionInputs
from tidegate_engine.runner import ScheduledRow


@dataclass(frozen=True)
class StepTensors:
    """One ragged batch, rows one after the other."""

    token_ids: torch.Tensor  # int64 [tokens]
    positions: torch.Tensor  # int64 [tokens]
    attention: AttentionInputs


def step_tensors(rows: Sequence[ScheduledRow], block_size: int, device: torch.device) -> StepTensors:
    """`rows` must not be empty."""
    lengths = [len(row.token_ids) for row in rows]
    contexts = [row.start + length for row, length in zip(rows, lengths, strict=True)]
    num_blocks = [-(-context // block_size) for context in contexts]
    widest = max(num_blocks)
    tables = [row.block_table[:count] + (0,) * (widest - count) for row, count in zip(rows, num_blocks, strict=True)]
    starts = [0]
    for length in lengths:
        starts.append(starts[-1] + length)
    inputs = AttentionInputs(
        query_start=torch.tensor(starts, dtype=torch.int32, device=device),
        context_lens=torch.tensor(contexts, dtype=torch.int32, device=device),
        block_tables=torch.tensor(tables, dtype=torch.int32, device=device),
        slot_mapping=torch.tensor(list(_slots(rows, block_size)), dtype=torch.int64, device=device),
        max_query=max(lengths),
        max_context=max(contexts),
    )
    token_ids = [token for row in rows for token in row.token_ids]
    positions = [position for row, end in zip(rows, contexts, strict=True) for position in range(row.start, end)]
    return StepTensors(torch.tensor(token_ids, device=device), torch.tensor(positions, device=device), inputs)


def _slots(rows: Sequence[ScheduledRow], block_size: int) -> Iterator[int]:
    for row in rows:
        for position in range(row.start, row.start + len(row.token_ids)):
            yield row.block_table[position // block_size] * block_size + position % block_size
