"""A scheduled step as tensors: token ids, positions, and where keys and values lie. Built once a step by the runner."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from tidegate_engine.attention.base import AttentionInputs
from tidegate_engine.runner import NULL_BLOCK, ScheduledRow


@dataclass(frozen=True)
class StepTensors:
    """One ragged batch, rows one after the other."""

    token_ids: torch.Tensor  # int64 [tokens]
    positions: torch.Tensor  # int64 [tokens]
    attention: tuple[AttentionInputs, ...]  # one a KV group


def step_tensors(rows: Sequence[ScheduledRow], block_size: int, device: torch.device) -> StepTensors:
    """`rows` must not be empty."""
    lengths = [len(row.token_ids) for row in rows]
    contexts = [row.start + length for row, length in zip(rows, lengths, strict=True)]
    num_blocks = [-(-context // block_size) for context in contexts]
    starts = [0]
    for length in lengths:
        starts.append(starts[-1] + length)
    query_start = torch.tensor(starts, dtype=torch.int32, device=device)
    context_lens = torch.tensor(contexts, dtype=torch.int32, device=device)
    inputs = tuple(
        AttentionInputs(
            query_start=query_start,
            context_lens=context_lens,
            block_tables=torch.tensor(_padded(tables, num_blocks), dtype=torch.int32, device=device),
            slot_mapping=torch.tensor(list(_slots(rows, tables, block_size)), dtype=torch.int64, device=device),
            max_query=max(lengths),
            max_context=max(contexts),
        )
        for tables in zip(*(row.block_tables for row in rows), strict=True)
    )
    token_ids = [token for row in rows for token in row.token_ids]
    positions = [position for row, end in zip(rows, contexts, strict=True) for position in range(row.start, end)]
    return StepTensors(torch.tensor(token_ids, device=device), torch.tensor(positions, device=device), inputs)


def _padded(tables: Sequence[tuple[int, ...]], num_blocks: Sequence[int]) -> list[tuple[int, ...]]:
    """Equally long tables. Where nobody looks stands block 0, as any would do."""
    widest = max(num_blocks)
    padded = []
    for table, count in zip(tables, num_blocks, strict=True):
        num_null = table.count(NULL_BLOCK)  # blocks left behind by a window come first
        padded.append((0,) * num_null + table[num_null:count] + (0,) * (widest - count))
    return padded


def _slots(rows: Sequence[ScheduledRow], tables: Sequence[tuple[int, ...]], block_size: int) -> Iterator[int]:
    for row, table in zip(rows, tables, strict=True):
        for position in range(row.start, row.start + len(row.token_ids)):
            yield table[position // block_size] * block_size + position % block_size
