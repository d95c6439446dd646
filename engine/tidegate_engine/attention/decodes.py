"""Paged attention on CPU: rows with one query token by a kernel, where there is one, others by the reference."""

import torch

from tidegate_engine.attention import reference
from tidegate_engine.attention.base import AttentionInputs
from tidegate_engine.attention.once_a_step import once_a_step
from tidegate_engine.attention.pages import KvPages
from tidegate_engine.cpu_kernels import catalog


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
    kernel = catalog.decode_attention(pages.data.dtype)
    if kernel is None or not kernel.serves(query, pages):
        return reference.attend(query, pages, inputs, scale=scale, window=window, softcap=softcap)
    result = torch.empty_like(query)
    for part in reference.prefill_parts(inputs, pages.block_size, window):
        result[part.tokens] = reference.attend_part(query[part.tokens], pages, part, scale, softcap)
    decodes = _decodes(inputs)
    if decodes.numel():
        tables = inputs.block_tables
        kernel(query, pages, decodes, tables, result, scale=scale, window=window, softcap=softcap)
    return result


@once_a_step
def _decodes(inputs: AttentionInputs) -> torch.Tensor:
    """int32 [rows, (row, token, context)]: one query token each."""
    starts, contexts = inputs.query_start.tolist(), inputs.context_lens.tolist()
    rows = [(row, starts[row], context) for row, context in enumerate(contexts) if starts[row + 1] - starts[row] == 1]
    return torch.tensor(rows, dtype=torch.int32).view(-1, 3)
