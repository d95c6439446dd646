"""Paged attention in plain torch: the reference every kernel is compared with, and what serves on CPU.

A step is cut into parts that share one gather and one scaled-dot-product call: all decodes of similar length together,
prefill chunks in stretches of PREFILL_QUERIES so that masks stay small and a stretch only reads keys up to its end.

    decode part   query [rows, kv_heads, group, head_dim]       keys [rows, kv_heads, keys, head_dim]
    prefill part  query [kv_heads, group, queries, head_dim]    keys [kv_heads, 1 -> group, keys, head_dim]
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F

from tidegate_engine.attention.base import AttentionInputs
from tidegate_engine.attention.pages import KvPages

PREFILL_QUERIES = 128
SHORT_CONTEXT_BLOCKS = 64  # decodes up to this length are padded to the longest of them; longer ones by powers of two


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
    parts = _cut(inputs, pages.block_size, window)
    outputs = [_attend_part(query[part.tokens], pages, part, scale, softcap) for part in parts]
    if len(parts) == 1:
        return outputs[0]
    result = torch.empty_like(query)
    for part, output in zip(parts, outputs, strict=True):
        result[part.tokens] = output
    return result


@dataclass(frozen=True)
class _Part:
    """Rows with one query token each, or several query tokens of a single row."""

    tokens: torch.Tensor | slice  # positions in the step
    num_rows: int
    blocks: torch.Tensor  # int64 [rows * blocks]: those that hold the keys
    mask: torch.Tensor  # fp32 [rows, 1, queries, blocks * block_size]: 0 where visible, else -inf


def _attend_part(query: torch.Tensor, pages: KvPages, part: _Part, scale: float, softcap: float | None) -> torch.Tensor:
    num_queries, num_heads, head_dim = query.shape
    group = num_heads // pages.num_kv_heads
    keys, values = (_gather(pages, part, index, query.dtype) for index in (0, 1))
    grouped = query.view(num_queries, pages.num_kv_heads, group, head_dim)
    is_prefill = num_queries > part.num_rows
    if is_prefill:
        grouped = grouped.permute(1, 2, 0, 3)
        keys, values = (side.transpose(0, 1).expand(-1, group, -1, -1) for side in (keys, values))
    mask = part.mask.to(query.dtype)
    if softcap is None:
        output = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask, scale=scale)
    else:
        scores = softcap * torch.tanh(grouped.float() @ keys.float().transpose(-1, -2) * (scale / softcap))
        output = ((scores + mask).softmax(-1) @ values.float()).to(query.dtype)
    if is_prefill:
        output = output.permute(2, 0, 1, 3)
    return output.reshape(num_queries, num_heads, head_dim)


def _gather(pages: KvPages, part: _Part, index: int, dtype: torch.dtype) -> torch.Tensor:
    """Keys (index 0) or values (1) of a part: [rows, kv_heads, blocks * block_size, head_dim]."""
    vectors = pages.gathered(index, part.blocks, dtype)
    return vectors.view(part.num_rows, -1, *vectors.shape[2:]).transpose(1, 2)


@lru_cache(maxsize=16)  # layers of one step share it: one entry per KV group
def _cut(inputs: AttentionInputs, block_size: int, window: int | None) -> tuple[_Part, ...]:
    starts, contexts = inputs.query_start.tolist(), inputs.context_lens.tolist()
    parts = []
    decodes: dict[int, list[int]] = {}
    for row, context in enumerate(contexts):
        num_queries = starts[row + 1] - starts[row]
        if num_queries == 1:
            num_blocks = _num_blocks(context, block_size, window)
            decodes.setdefault(max(num_blocks, SHORT_CONTEXT_BLOCKS).bit_length(), []).append(row)
            continue
        for done in range(0, num_queries, PREFILL_QUERIES):
            taken = min(PREFILL_QUERIES, num_queries - done)
            last = context - num_queries + done + taken
            first = starts[row] + done
            where = _Where([row], slice(first, first + taken), list(range(last - taken, last)))
            parts.append(_part(inputs, where, block_size, window))
    for rows in decodes.values():
        where = _Where(
            rows,
            _as_slice([starts[row] for row in rows], inputs.query_start.device),
            [contexts[row] - 1 for row in rows],
        )
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


def _part(inputs: AttentionInputs, where: _Where, block_size: int, window: int | None) -> _Part:
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
    key_positions = first_blocks * block_size + torch.arange(num_blocks * block_size, device=device)
    is_visible = key_positions <= query_positions
    if window is not None:
        is_visible &= key_positions > query_positions - window
    mask = torch.zeros(is_visible.shape, device=device).masked_fill_(~is_visible, float("-inf"))
    return _Part(where.tokens, len(where.rows), blocks.flatten().long(), mask[:, None])
