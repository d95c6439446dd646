"""Paged attention in plain torch: the reference every kernel is compared with, and what serves on CPU.

A step is cut into parts that share one gather and one scaled-dot-product call: decodes of similar length together,
prefill chunks in stretches of PREFILL_QUERIES so that a stretch only reads keys up to its end. One part's keys, values
and prompt mask exist at a time, as the plan of a step's memory counts on (tests/cpu/test_step_memory.py).

    decode part   query [rows, kv_heads, group, head_dim]       keys [rows, kv_heads, keys, head_dim]
    prefill part  query [kv_heads, group, queries, head_dim]    keys [kv_heads, 1 -> group, keys, head_dim]
"""

from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F

from tidegate_engine.attention.base import AttentionInputs
from tidegate_engine.attention.once_a_step import once_a_step
from tidegate_engine.attention.pages import KvPages, sides_of

PREFILL_QUERIES = 128
SHORT_CONTEXT_BLOCKS = 64  # decodes up to this length are padded to the longest of them; longer ones by powers of two
PART_KEYS = 1 << 14  # decodes are gathered together up to so many keys; one alone may have more


def attend(
    query: torch.Tensor,
    pages: KvPages,
    inputs: AttentionInputs,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> torch.Tensor:
    """See attention.base.Attention."""
    parts = prefill_parts(inputs, pages.block_size, window) + _decode_parts(inputs, pages.block_size, window)
    if len(parts) == 1:
        return attend_part(query[parts[0].tokens], pages, parts[0], scale, softcap)
    result = torch.empty_like(query)
    for part in parts:
        result[part.tokens] = attend_part(query[part.tokens], pages, part, scale, softcap)
    return result


@dataclass(frozen=True)
class Part:
    """Rows with one query token each, or several query tokens of a single row."""

    tokens: torch.Tensor | slice  # places in the step
    num_rows: int
    num_keys: int  # of each row: blocks * block_size
    sides: torch.Tensor  # int64 [2 * rows * blocks]: of those that hold the keys and values
    positions: torch.Tensor  # int64 [rows, queries, 1]: of the queries
    first_keys: torch.Tensor  # int64 [rows, 1, 1]: where the first of the blocks begins
    window: int | None

    def mask(self, dtype: torch.dtype) -> torch.Tensor:
        """[rows, 1, queries, keys]: 0 where visible, else -inf. A prompt's is large, so it is made for each layer."""
        return self._made_mask(dtype) if self.positions.shape[1] > 1 else self._decode_mask.to(dtype)

    @cached_property
    def _decode_mask(self) -> torch.Tensor:
        """Four bytes a key; made for each layer it would take a quarter of the attention to a short context."""
        return self._made_mask(torch.float32)

    def _made_mask(self, dtype: torch.dtype) -> torch.Tensor:
        key_positions = self.first_keys + torch.arange(self.num_keys, device=self.positions.device)
        is_hidden = key_positions > self.positions
        if self.window is not None:
            is_hidden |= key_positions <= self.positions - self.window
        mask = torch.zeros(is_hidden.shape, dtype=dtype, device=is_hidden.device)
        return mask.masked_fill_(is_hidden, float("-inf"))[:, None]


def attend_part(query: torch.Tensor, pages: KvPages, part: Part, scale: float, softcap: float | None) -> torch.Tensor:
    num_queries, num_heads, head_dim = query.shape
    group = num_heads // pages.num_kv_heads
    keys, values = _gather(pages, part, query.dtype)
    grouped = query.view(num_queries, pages.num_kv_heads, group, head_dim)
    is_prefill = num_queries > part.num_rows
    if is_prefill:
        grouped = grouped.permute(1, 2, 0, 3)
        keys, values = (side.transpose(0, 1).expand(-1, group, -1, -1) for side in (keys, values))
    mask = part.mask(query.dtype)
    if softcap is None:
        output = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask, scale=scale)
    else:
        scores = softcap * torch.tanh(grouped.float() @ keys.float().transpose(-1, -2) * (scale / softcap))
        output = ((scores + mask).softmax(-1) @ values.float()).to(query.dtype)
    if is_prefill:
        output = output.permute(2, 0, 1, 3)
    return output.reshape(num_queries, num_heads, head_dim)


def _gather(pages: KvPages, part: Part, dtype: torch.dtype) -> torch.Tensor:
    """Keys and values of a part: [2, rows, kv_heads, blocks * block_size, head_dim]."""
    vectors = pages.gathered(part.sides, dtype)
    return vectors.view(2, part.num_rows, -1, *vectors.shape[2:]).transpose(2, 3)


@once_a_step
def prefill_parts(inputs: AttentionInputs, block_size: int, window: int | None) -> tuple[Part, ...]:
    """Of the rows with several query tokens."""
    starts, contexts = inputs.query_start.tolist(), inputs.context_lens.tolist()
    parts = []
    for row, context in enumerate(contexts):
        num_queries = starts[row + 1] - starts[row]
        if num_queries == 1:
            continue
        for done in range(0, num_queries, PREFILL_QUERIES):
            taken = min(PREFILL_QUERIES, num_queries - done)
            last = context - num_queries + done + taken
            first = starts[row] + done
            where = _Where([row], slice(first, first + taken), list(range(last - taken, last)))
            parts.append(_part(inputs, where, block_size, window))
    return tuple(parts)


@once_a_step
def _decode_parts(inputs: AttentionInputs, block_size: int, window: int | None) -> tuple[Part, ...]:
    starts, contexts = inputs.query_start.tolist(), inputs.context_lens.tolist()
    parts = []
    decodes: dict[int, list[int]] = {}
    for row, context in enumerate(contexts):
        if starts[row + 1] - starts[row] == 1:
            num_blocks = _num_blocks(context, block_size, window)
            decodes.setdefault(max(num_blocks, SHORT_CONTEXT_BLOCKS).bit_length(), []).append(row)
    for similar in decodes.values():
        num_keys = max(_num_blocks(contexts[row], block_size, window) for row in similar) * block_size
        num_rows = max(1, PART_KEYS // num_keys)
        for done in range(0, len(similar), num_rows):
            rows = similar[done : done + num_rows]
            tokens = _as_slice([starts[row] for row in rows], inputs.query_start.device)
            where = _Where(rows, tokens, [contexts[row] - 1 for row in rows])
            parts.append(_part(inputs, where, block_size, window))
    return tuple(parts)


def _num_blocks(context: int, block_size: int, window: int | None) -> int:
    return -(-min(context, window or context) // block_size)


def _as_slice(tokens: list[int], device: torch.device) -> torch.Tensor | slice:
    """A slice is a view where an index is a copy; the scheduler puts decodes side by side."""
    if tokens[-1] - tokens[0] + 1 == len(tokens):
        return slice(tokens[0], tokens[-1] + 1)
    return torch.tensor(tokens, device=device)


@dataclass(frozen=True)
class _Where:
    rows: list[int]
    tokens: torch.Tensor | slice
    positions: list[int]  # of the queries: one a row (decode), or all of the only row (prefill)


def _part(inputs: AttentionInputs, where: _Where, block_size: int, window: int | None) -> Part:
    """Each row's keys begin with the block its window begins in and reach the longest row's end; the rest is masked."""
    device = inputs.block_tables.device
    query_positions = torch.tensor(where.positions, device=device).view(len(where.rows), -1, 1)
    first_keys = query_positions[:, :1] * 0 if window is None else (query_positions[:, :1] - window + 1).clamp(min=0)
    first_blocks = first_keys // block_size
    tables = inputs.block_tables[torch.tensor(where.rows, device=device)]
    num_blocks = -(-(max(where.positions) + 1) // block_size)
    if window is not None:
        num_blocks = min(num_blocks, (query_positions.shape[1] + window - 2) // block_size + 2)
    columns = first_blocks[:, 0] + torch.arange(num_blocks, device=device)
    blocks = tables.gather(1, columns.clamp(max=tables.shape[1] - 1))
    return Part(
        where.tokens,
        len(where.rows),
        num_blocks * block_size,
        sides_of(blocks),
        query_positions,
        first_blocks * block_size,
        window,
    )
