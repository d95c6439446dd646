"""The engine: step() = schedule -> run -> postprocess. No threads and no clock of its own.

EngineLoop drives it on a thread, benchmarks and simulations drive it directly on a virtual clock.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tidegate_engine.counters import Counters
from tidegate_engine.errors import EngineFailed, GrammarFailed
from tidegate_engine.outputs import ending_of, plain_token, take_prompt_logprobs, token_chunk
from tidegate_engine.patience import Patience
from tidegate_engine.request import FinishReason, Request, SamplingParams, TokenChunk
from tidegate_engine.runner import RowOutput, RowResult, Runner, ScheduledRow
from tidegate_engine.scheduling.blocks import BlockPool
from tidegate_engine.scheduling.budget import MIN_CHUNK_TOKENS, BudgetLimits, token_budget
from tidegate_engine.scheduling.isolation import run_isolated
from tidegate_engine.scheduling.lengths import OutputLengths
from tidegate_engine.scheduling.prefix_cache import PrefixCache
from tidegate_engine.scheduling.queue import RequestQueue
from tidegate_engine.scheduling.scheduler import USUAL_OUTPUT_TOKENS, Scheduler, Step
from tidegate_engine.scheduling.step_fit import StepTimeModel

log = logging.getLogger(__name__)


class RequestOutput(NamedTuple):
    """What a step did for one request: a sampled token, an end, or both."""

    request_id: str
    chunk: TokenChunk


class Engine:
    """One model's requests. Only `queue` and `end_soon` may be touched by other threads."""

    def __init__(
        self,
        runner: Runner,
        *,
        slots: int,
        limits: BudgetLimits,
        clock: Callable[[], float],
        counters: Counters,
        has_prefix_cache: bool = False,
        usual_output_tokens: int = USUAL_OUTPUT_TOKENS,
    ) -> None:
        self.queue = RequestQueue()
        windows, block_size = runner.kv_windows, runner.block_size
        prefixes = PrefixCache(windows, block_size) if has_prefix_cache else None
        self.pool = BlockPool(runner.num_blocks, block_size, windows, limits.max_step_tokens, prefixes)
        slots = min(slots, limits.max_step_tokens - MIN_CHUNK_TOKENS)  # a step has room for all of them and a chunk
        self.lengths = OutputLengths(usual_output_tokens)
        self.scheduler = Scheduler(self.pool, self.queue, slots=slots, counters=counters, lengths=self.lengths)
        self.step_times = StepTimeModel(guess_seconds=limits.itl_seconds)
        self.counters = counters
        self.patience = Patience()
        self._runner = runner
        self.limits = limits
        self._clock = clock
        self._to_end: deque[tuple[str, FinishReason]] = deque()
        self._num_context_tokens = 0

    @property
    def has_work(self) -> bool:
        return bool(self.scheduler.running or self.queue or self._to_end)

    def end_soon(self, request_id: str, reason: FinishReason) -> None:
        """Before the next step: ABORT, or STOP for a text that is complete; unknown or ended requests are ignored."""
        self._to_end.append((request_id, reason))

    def step(self) -> tuple[RequestOutput, ...]:
        """Raises EngineFailed when the runner no longer computes anything at all."""
        outputs = self._end_those_told()
        has_work = bool(self.scheduler.running or self.queue)  # asked before: others may queue while we schedule
        step = self.scheduler.schedule(self._budget())
        if step.rows:
            outputs += self._finish_step(step, self._run(step))
        assert step.rows or not has_work, "somebody waits, nobody advances"
        return tuple(outputs)

    def _budget(self) -> int:
        return token_budget(
            self.limits, self.step_times.step_time, self.scheduler.num_decoding, self._num_context_tokens
        )

    def _end_those_told(self) -> list[RequestOutput]:
        outputs = []
        while self._to_end:
            request_id, reason = self._to_end.popleft()
            if self.scheduler.end(request_id, reason):
                self.counters.finished[reason] += 1
                outputs.append(RequestOutput(request_id, TokenChunk((), reason)))
        return outputs

    def _run(self, step: Step) -> list[RowResult]:
        started = self._clock()
        mark_started(step.requests[step.num_decoding :], started)
        predicted_seconds = self.step_times.step_time.predict(step.num_tokens, step.num_context_tokens)
        self.patience.begin(step.num_tokens, predicted_seconds)
        results = run_isolated(self._runner, step.rows)
        self.counters.step_tokens.observe(step.num_tokens)
        self._num_context_tokens = step.num_context_tokens
        num_failed = len([result for result in results if isinstance(result, Exception)])
        if not num_failed:
            self.patience.end(step.num_tokens)
            self.step_times.observe(step.num_tokens, step.num_context_tokens, self._clock() - started)
        elif num_failed == len(results):
            self._check_runner(tuple(table[-1:] for table in step.rows[0].block_tables))
        return results

    def _check_runner(self, spare_blocks: tuple[tuple[int, ...], ...]) -> None:
        """All rows failed: they are all guilty, or nothing works any more. One token in blocks of theirs tells."""
        probe = ScheduledRow("probe", (0,), 0, spare_blocks, SamplingParams(max_tokens=1, temperature=0.0), 0)
        (result,) = run_isolated(self._runner, (probe,))
        if isinstance(result, Exception):
            raise EngineFailed("every request of a step failed, and a probe too: the process must restart") from result

    def _finish_step(self, step: Step, results: list[RowResult]) -> list[RequestOutput]:
        outputs = self._finish_decoding(step, results)
        first = step.num_decoding
        for request, row, result in zip(step.requests[first:], step.rows[first:], results[first:], strict=True):
            if is_current(request, row) and (chunk := self._finish_row(request, row, result)) is not None:
                outputs.append(RequestOutput(request.request_id, chunk))
        self.counters.generation_tokens += sum([len(chunk.token_ids) for _, chunk in outputs])
        return outputs

    def _finish_decoding(self, step: Step, results: list[RowResult]) -> list[RequestOutput]:
        """Hundreds a step, hence the short way for those that get a token, go on, and asked for nothing else."""
        outputs = []
        decoded, new = self.scheduler.decoded, tuple.__new__  # a named tuple's own __new__ takes three times as long
        for request, row, result in zip(step.requests[: step.num_decoding], step.rows, results, strict=False):
            if not is_current(request, row):
                continue
            token_id = plain_token(request, row, result)
            if token_id is None:
                chunk = self._finish_row(request, row, result)
            else:
                decoded(request, token_id)
                chunk = new(TokenChunk, ((token_id,), None, (), (), 0, False))
            if chunk is not None:
                outputs.append(new(RequestOutput, (request.request_id, chunk)))
        return outputs

    def _finish_row(self, request: Request, row: ScheduledRow, result: RowResult) -> TokenChunk | None:
        return self._fail(request, result) if isinstance(result, Exception) else self._take(request, row, result)

    def _take(self, request: Request, row: ScheduledRow, output: RowOutput | None) -> TokenChunk | None:
        token_id = None if output is None else output.token_id
        self.scheduler.computed(request, len(row.token_ids), token_id)
        if output is None:
            return None
        if row.extras:
            take_prompt_logprobs(request, row, output)
        if token_id is None:
            return None
        if row.num_outputs == 0:
            self._count_prompt(request)
        try:
            ending = ending_of(request, token_id)
        except GrammarFailed as error:
            return self._fail(request, error)
        if ending.reason:
            self.scheduler.end(request.request_id, ending.reason)
            self.counters.finished[ending.reason] += 1
        return token_chunk(request, token_id, output.logprobs, ending)

    def _count_prompt(self, request: Request) -> None:
        self.counters.prompt_tokens += request.num_prompt_tokens
        if self.pool.has_prefix_cache:
            self.counters.prefix_queried_tokens += request.num_prompt_tokens
            self.counters.prefix_hit_tokens += request.num_cached_tokens

    def _fail(self, request: Request, error: Exception) -> TokenChunk:
        log.error("request %s failed in a step: %r", request.request_id, error, exc_info=error)
        self.scheduler.end(request.request_id, FinishReason.ERROR)
        self.counters.finished[FinishReason.ERROR] += 1
        return TokenChunk((), FinishReason.ERROR)


def is_current(request: Request, row: ScheduledRow) -> bool:
    """Unless it was preempted or has ended since: its tables belong to others by now."""
    return row.epoch == request.num_preemptions and request.finish_reason is None


def mark_started(requests: Sequence[Request], now: float) -> None:
    """Those of a step that were never in one before; a preempted request started when it first did."""
    for request in requests:
        if request.started_seconds is None:
            request.started_seconds = now
