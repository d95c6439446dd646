"""The seam between scheduling and computing: what one step computes, and who can compute it.

The scheduler's half of the engine knows nothing else of a model; TorchRunner and SimRunner implement `Runner`.
"""

from typing import NamedTuple, Protocol

from tidegate_engine.grammar.base import TokenConstraint
from tidegate_engine.history import TokenHistory
from tidegate_engine.request import Request, SamplingParams, TokenLogprobs


class RowExtras(NamedTuple):
    """What few rows need besides their SamplingParams. Nothing in it changes while a step runs."""

    history: TokenHistory | None = None
    constraint: TokenConstraint | None = None
    num_prompt_logprobs: int = 0
    prompt_targets: tuple[int, ...] = ()  # the prompt's tokens after each of the row's, where their logprobs are wanted


NULL_BLOCK = -1  # stands in a table for a block that was freed because no later token sees it


class ScheduledRow(NamedTuple):
    """One request's part of a step. A named tuple: hundreds are made a step, a frozen dataclass costs three times more.

    `token_ids` are computed now, the first of them at position `start`. `sampling` is None in the middle of a prompt,
    where nothing is sampled. `num_outputs` is the index of the token sampled now: noise is drawn from (seed, index), so
    a seed means the same answer in any batch. There is a block table for each KV group; they cover every position up to
    start + len(token_ids), but for NULL_BLOCK where no layer of the group looks any more. `epoch` is the number of the
    request's preemptions when the row was made: a result of an earlier epoch is of no use to it.
    """

    request_id: str
    token_ids: tuple[int, ...]
    start: int
    block_tables: tuple[tuple[int, ...], ...]
    sampling: SamplingParams | None
    num_outputs: int
    extras: RowExtras | None = None
    epoch: int = 0


class StepBatch(NamedTuple):
    """Everything one step computes: decoding requests first, then chunks of prompts, first come first."""

    rows: tuple[ScheduledRow, ...]


class RowOutput(NamedTuple):
    """What a step computed for one row. `token_id` is None for a chunk of a prompt that only logprobs were wanted of.

    `prompt_logprobs` has one entry for each of the row's `prompt_targets`.
    """

    token_id: int | None
    logprobs: TokenLogprobs | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()


RowResult = RowOutput | None | Exception


def row_extras(request: Request, start: int, end: int) -> RowExtras | None:
    """For the row that computes positions start to end; None for all but a few requests."""
    num_prompt_logprobs = request.sampling.num_prompt_logprobs
    is_prompt_asked = num_prompt_logprobs is not None and len(request.prompt_logprobs) < request.num_prompt_tokens
    if request.history is None and request.constraint is None and not is_prompt_asked:
        return None
    targets = tuple(request.token_ids[start + 1 : min(end + 1, request.num_prompt_tokens)]) if is_prompt_asked else ()
    return RowExtras(request.history, request.constraint, num_prompt_logprobs or 0, targets)


class Runner(Protocol):
    """Computes steps. `num_blocks` and `block_size` describe the KV pool that block tables point into.

    `kv_windows` has an entry for each KV group, whose layers share one table: the window of its layers, None where they
    see everything. All groups take their blocks from the one pool.
    """

    @property
    def num_blocks(self) -> int: ...

    @property
    def block_size(self) -> int: ...

    @property
    def kv_windows(self) -> tuple[int | None, ...]: ...

    @property
    def vocab_size(self) -> int: ...

    def run(self, batch: StepBatch) -> tuple[RowResult, ...]:
        """One result a row, in the rows' order, with a token where `sampling` is not None; None where nothing is asked.

        An exception in a row's place fails that row alone. It may also raise, for any reason: the engine runs parts of
        the batch again to find the guilty row, so a row computed twice must give the same result. EngineFailed ends the
        engine instead.
        """
        ...
