"""Rows of a step: what the runner needs of each request, with blocks taken for every token it computes.

The scheduler makes them once it is decided who is in the step.
"""

from collections.abc import Collection, Iterable

from tidegate_engine.request import Request
from tidegate_engine.runner import ScheduledRow, row_extras
from tidegate_engine.scheduling.blocks import BlockPool


def decode_rows(requests: Collection[Request], pool: BlockPool) -> list[ScheduledRow]:
    """A token of each. There are hundreds a step, hence the short way to each."""
    block_size = pool.block_size
    begin_block = [request for request in requests if (len(request.token_ids) - 1) % block_size == 0]
    pool.grow_by_block(begin_block, [len(request.token_ids) for request in begin_block])
    rows = []
    new = tuple.__new__  # a named tuple's own __new__ takes twice as long
    for request in requests:
        token_ids = request.token_ids
        num_tokens = len(token_ids)
        has_extras = request.history is not None or request.constraint is not None
        rows.append(
            new(
                ScheduledRow,
                (
                    request.request_id,
                    (token_ids[-1],),
                    num_tokens - 1,
                    request.block_tables,
                    request.sampling,
                    num_tokens - request.num_prompt_tokens,
                    row_extras(request, num_tokens - 1, num_tokens) if has_extras else None,
                    request.num_preemptions,
                ),
            )
        )
    return rows


def prefill_row(request: Request, num_tokens: int, pool: BlockPool) -> ScheduledRow:
    """The next tokens of a prompt, or of a request that is computed again."""
    start = request.num_computed_tokens
    end = start + num_tokens
    pool.grow(request, end, start)
    return ScheduledRow(
        request.request_id,
        tuple(request.token_ids[start:end]),
        start,
        request.block_tables,
        request.sampling if end == request.num_tokens else None,
        request.num_outputs,
        row_extras(request, start, end),
        request.num_preemptions,
    )


def new_blocks_of(
    decoding: Iterable[Request], chunks: Iterable[tuple[Request, int]], pool: BlockPool
) -> dict[str, int]:
    """What the rows of a step will take, once their requests have left behind what they see no more.

    Of those that decode only one in 16, for a block's worth of steps, takes any.
    """
    ends = [(each, num - 1, num) for each in decoding if ((num := len(each.token_ids)) - 1) % pool.block_size == 0]
    ends += [(each, each.num_computed_tokens, each.num_computed_tokens + num_tokens) for each, num_tokens in chunks]
    new_blocks = {}
    for request, start, end in ends:
        if request.block_tables:
            pool.leave_behind(request, start)
        new_blocks[request.request_id] = pool.num_new(request, end)
    return new_blocks
