"""A runner without a model: it takes as long as a model would and samples tokens that mean nothing.

Rehearses rollouts, scaling and overload without an accelerator (`--runner sim`), and stands in for a model in tests.
It says that it is a simulation wherever it shows. Time passes through the injected `sleep` only.
"""

import logging
import math
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from tidegate_engine.counters import Counters
from tidegate_engine.request import SamplingParams, TokenLogprobs
from tidegate_engine.runner import RowOutput, ScheduledRow, StepBatch
from tidegate_engine.scheduling.step_fit import StepTime

log = logging.getLogger(__name__)

MIDSIZE_MODEL = StepTime(base_seconds=0.02, seconds_per_token=0.0002, seconds_per_context_token=1e-7)


@dataclass(frozen=True)
class SimSettings:
    """The simulated engine. `answer_tokens`: the end-of-sequence token comes as the answer's token of this number."""

    num_blocks: int
    block_size: int = 16
    kv_windows: tuple[int | None, ...] = (None,)
    vocab_size: int = 256
    eos_token_id: int = 0
    answer_tokens: int | None = None
    step_time: StepTime = MIDSIZE_MODEL
    preemptions_per_minute: float = 0.0


class SimRunner:
    """Implements Runner. A token depends only on its position and the token before, so no batch changes an answer."""

    is_simulation = True

    def __init__(
        self, settings: SimSettings, *, counters: Counters, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.num_blocks = settings.num_blocks
        self.block_size = settings.block_size
        self.kv_windows = settings.kv_windows
        self.vocab_size = settings.vocab_size
        self._settings = settings
        self._counters = counters
        self._sleep = sleep
        self._preemptions_due = 0.0
        log.warning("this engine is a simulation: it holds no model and its answers mean nothing")

    def run(self, batch: StepBatch) -> tuple[RowOutput | None, ...]:
        num_tokens = sum(len(row.token_ids) for row in batch.rows)
        seconds = self._settings.step_time.predict(num_tokens, sum(row.start for row in batch.rows))
        if seconds > 0:
            self._sleep(seconds)
        self._inject_preemptions(seconds)
        return tuple(self._output(row) for row in batch.rows)

    def _inject_preemptions(self, seconds: float) -> None:
        """Counted only, at an even pace while steps run: no request is disturbed."""
        self._preemptions_due += self._settings.preemptions_per_minute * seconds / 60
        whole = int(self._preemptions_due)
        self._preemptions_due -= whole
        self._counters.preemptions += whole

    def _output(self, row: ScheduledRow) -> RowOutput | None:
        prompt_logprobs: tuple[TokenLogprobs, ...] = ()
        if row.extras and row.extras.prompt_targets:
            num_top = row.extras.num_prompt_logprobs
            prompt_logprobs = tuple(self._logprobs(token_id, num_top) for token_id in row.extras.prompt_targets)
        if row.sampling is None:
            return RowOutput(None, None, prompt_logprobs) if prompt_logprobs else None
        token_id = self._sample(row, row.sampling)
        num_others = row.sampling.num_logprobs
        logprobs = None if num_others is None else self._logprobs(token_id, num_others)
        return RowOutput(token_id, logprobs, prompt_logprobs)

    def _logprobs(self, token_id: int, num_top: int) -> TokenLogprobs:
        """The token itself has half of the probability, the next id half of the rest, and so on."""
        top = tuple(((token_id + rank) % self.vocab_size, -(rank + 1) * math.log(2)) for rank in range(num_top))
        return TokenLogprobs(token_id, -math.log(2), top)

    def _sample(self, row: ScheduledRow, sampling: SamplingParams) -> int:
        if row.extras and row.extras.constraint:
            return self._allowed(row, row.extras.constraint.mask())
        if self._settings.answer_tokens is not None:
            least_tokens = max(self._settings.answer_tokens, sampling.min_tokens + 1)
            if row.num_outputs + 1 >= least_tokens:
                return self._settings.eos_token_id
        token = self._hash(row) % self.vocab_size
        return token if token != self._settings.eos_token_id else (token + 1) % self.vocab_size

    def _allowed(self, row: ScheduledRow, mask: bytes) -> int:
        """Ends as soon as it may, else takes any token that the grammar allows."""
        allowed = int.from_bytes(mask, "little") & ((1 << self.vocab_size) - 1)
        eos = self._settings.eos_token_id
        if allowed >> eos & 1:
            return eos
        first = self._hash(row) % self.vocab_size
        return first + _lowest_bit(allowed >> first) if allowed >> first else _lowest_bit(allowed)

    @staticmethod
    def _hash(row: ScheduledRow) -> int:
        return zlib.crc32(f"{row.token_ids[-1]},{row.start + len(row.token_ids)}".encode())


def _lowest_bit(bits: int) -> int:
    return (bits & -bits).bit_length() - 1
