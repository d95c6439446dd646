"""The seam between scheduling and computing: what one step computes, and who can compute it.

The scheduler's half of the engine knows nothing else of a model; TorchRunner and SimRunner implement `Runner`.
"""

from typing import NamedTuple, Protocol

from tidegate_engine.request import SamplingParams


class ScheduledRow(NamedTuple):
    """One request's part of a step. A named tuple: hundreds are made a step, a frozen dataclass costs three times more.

    `token_ids` are computed now, the first of them at position `start`. `sampling` is None in the middle of a prompt,
    where nothing is sampled. `num_outputs` is the index of the token sampled now: noise is drawn from (seed, index), so
    a seed means the same answer in any batch. The block table covers every position up to start + len(token_ids).
    """

    request_id: str
    token_ids: tuple[int, ...]
    start: int
    block_table: tuple[int, ...]
    sampling: SamplingParams | None
    num_outputs: int


class StepBatch(NamedTuple):
    """Everything one step computes: decoding requests first, then chunks of prompts, first come first."""

    rows: tuple[ScheduledRow, ...]


class Runner(Protocol):
    """Computes steps. `num_blocks` and `block_size` describe the KV pool that block tables point into."""

    @property
    def num_blocks(self) -> int: ...

    @property
    def block_size(self) -> int: ...

    @property
    def eos_token_ids(self) -> frozenset[int]: ...

    @property
    def vocab_size(self) -> int: ...

    def run(self, batch: StepBatch) -> tuple[int | None, ...]:
        """One sampled token a row, in the rows' order; None where `sampling` is None.

        May raise for any reason: the engine runs parts of the batch again to find the guilty row, so a row computed
        twice must give the same result.
        """
        ...
