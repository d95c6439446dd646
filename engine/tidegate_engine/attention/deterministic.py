"""Paged attention whose result for a token is the same to the bit, whatever is computed beside it. For CPU.

Elsewhere the order of sums follows the shapes of a call: a prompt computed in other chunks, or from the middle on after
a hit in the prefix cache, differs in its last bits. Here all products have one shape, QUERY_TILE queries of a row by
KEY_TILE keys from a multiple of KEY_TILE on, and softmax goes over the tiles from left to right. A tile in which a
query sees nothing leaves it as it was:  maximum, sum, output = maximum, sum * 1 + 0, output * 1 + 0.
"""

from dataclasses import dataclass

import torch

from tidegate_engine.attention.base import AttentionInputs
from tidegate_engine.attention.once_a_step import once_a_step
from tidegate_engine.attention.pages import KvPages, sides_of

QUERY_TILE = 16
KEY_TILE = 64  # a multiple of the block size


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
    tiles = _cut(inputs, pages.block_size, window)
    num_heads, head_dim = query.shape[1:]
    group = num_heads // pages.num_kv_heads
    grouped = query[tiles.tokens].float().view(*tiles.tokens.shape, pages.num_kv_heads, group, head_dim)
    running = _Running(grouped.permute(0, 2, 3, 1, 4).flatten(2, 3).contiguous())  # [tiles, kv_heads, rows, head_dim]
    for start, active, sides in tiles.key_tiles:
        keys, values = _gather(pages, sides, len(active))
        scores = running.query[active] @ keys.transpose(-1, -2) * scale
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        positions = tiles.positions[active].repeat(1, group)[:, None, :, None]
        key_positions = torch.arange(start, start + KEY_TILE, device=query.device)
        is_hidden = key_positions > positions
        if window is not None:
            is_hidden |= key_positions <= positions - window
        running.add(active, scores.masked_fill_(is_hidden, float("-inf")), values)
    output = (running.output / running.total).view(-1, pages.num_kv_heads, group, QUERY_TILE, head_dim)
    output = output.permute(0, 3, 1, 2, 4)
    result = torch.empty_like(query)
    result[tiles.tokens[tiles.is_real]] = output[tiles.is_real].flatten(1, 2).to(query.dtype)
    return result


class _Running:
    """Online softmax: the largest score so far, the sum of weights and of weighted values relative to it."""

    def __init__(self, query: torch.Tensor) -> None:
        self.query = query
        self.output = torch.zeros_like(query)
        self.total = torch.zeros_like(query[..., :1])
        self.largest = torch.full_like(self.total, float("-inf"))

    def add(self, active: torch.Tensor, scores: torch.Tensor, values: torch.Tensor) -> None:
        before = self.largest[active]
        largest = torch.maximum(before, scores.amax(-1, keepdim=True))
        reference = largest.masked_fill(largest == float("-inf"), 0.0)  # nothing seen yet
        weights = torch.exp(scores - reference)
        kept = torch.exp(before - reference)
        self.total[active] = self.total[active] * kept + weights.sum(-1, keepdim=True)
        self.output[active] = self.output[active] * kept + weights @ values
        self.largest[active] = largest


@dataclass(frozen=True)
class _Tiles:
    """Up to QUERY_TILE tokens of a row each; what fills the last one of a row up repeats its last token."""

    tokens: torch.Tensor  # int64 [tiles, QUERY_TILE]: places in the step
    is_real: torch.Tensor  # bool, alike
    positions: torch.Tensor  # int64, alike
    key_tiles: list[tuple[int, torch.Tensor, torch.Tensor]]  # first key, tiles that see some, sides of their blocks


def _gather(pages: KvPages, sides: torch.Tensor, num_tiles: int) -> torch.Tensor:
    """Keys and values: [2, tiles, kv_heads, KEY_TILE, head_dim]."""
    vectors = pages.gathered(sides, torch.float32)
    return vectors.view(2, num_tiles, KEY_TILE, *vectors.shape[2:]).transpose(2, 3).contiguous()


@once_a_step
def _cut(inputs: AttentionInputs, block_size: int, window: int | None) -> _Tiles:
    starts, contexts = inputs.query_start.tolist(), inputs.context_lens.tolist()
    rows, tokens, positions, is_real = [], [], [], []
    for row, context in enumerate(contexts):
        num_queries = starts[row + 1] - starts[row]
        for first in range(0, num_queries, QUERY_TILE):
            numbers = [min(first + i, num_queries - 1) for i in range(QUERY_TILE)]
            rows.append(row)
            tokens.append([starts[row] + number for number in numbers])
            positions.append([context - num_queries + number for number in numbers])
            is_real.append([first + i < num_queries for i in range(QUERY_TILE)])
    return _Tiles(
        torch.tensor(tokens),
        torch.tensor(is_real),
        torch.tensor(positions),
        _key_tiles(inputs.block_tables[torch.tensor(rows)].long(), positions, block_size, window),
    )


def _key_tiles(
    tables: torch.Tensor, positions: list[list[int]], block_size: int, window: int | None
) -> list[tuple[int, torch.Tensor, torch.Tensor]]:
    num_blocks = KEY_TILE // block_size
    padded = torch.nn.functional.pad(tables, (0, -tables.shape[1] % num_blocks))
    seen_from = [0 if window is None else max(0, tile[0] - window + 1) // KEY_TILE for tile in positions]
    key_tiles = []
    for number in range(padded.shape[1] // num_blocks):
        seeing = [i for i, tile in enumerate(positions) if seen_from[i] <= number <= tile[-1] // KEY_TILE]
        if seeing:
            active = torch.tensor(seeing)
            blocks = padded[active, number * num_blocks : (number + 1) * num_blocks]
            key_tiles.append((number * KEY_TILE, active, sides_of(blocks)))
    return key_tiles
