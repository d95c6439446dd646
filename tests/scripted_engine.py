"""An engine on a virtual clock, over a runner that follows a script: what scheduler and engine tests drive."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tidegate_engine.counters import Counters
from tidegate_engine.engine import Engine, RequestOutput
from tidegate_engine.grammar.base import TokenConstraint
from tidegate_engine.request import DEFAULT_TERMS, FinishReason, Request, SamplingParams, Terms, new_request
from tidegate_engine.runner import NULL_BLOCK, RowOutput, RowResult, ScheduledRow, StepBatch
from tidegate_engine.scheduling.budget import BudgetLimits
from tidegate_engine.scheduling.step_fit import StepTime

EOS = 0
INSTANT = StepTime(0.0)


@dataclass
class VirtualClock:
    seconds: float = 0.0

    def __call__(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


@dataclass
class ScriptedRunner:
    """Samples 1000 * last token's position, or what `script` says; raises where `fault` says, fails the `failed`."""

    num_blocks: int
    block_size: int = 16
    kv_windows: tuple[int | None, ...] = (None,)
    vocab_size: int = 1 << 20
    script: dict[str, Sequence[int]] = field(default_factory=dict)
    fault: Callable[[tuple[ScheduledRow, ...]], Exception | None] = lambda _: None
    failed: Mapping[str, Exception] = field(default_factory=dict)
    step_time: StepTime = INSTANT
    clock: VirtualClock = field(default_factory=VirtualClock)
    batches: list[tuple[ScheduledRow, ...]] = field(default_factory=list)

    def run(self, batch: StepBatch) -> tuple[RowResult, ...]:
        self.batches.append(batch.rows)
        num_tokens = sum(len(row.token_ids) for row in batch.rows)
        self.clock.sleep(self.step_time.predict(num_tokens, sum(row.start for row in batch.rows)))
        error = self.fault(batch.rows)
        if error:
            raise error
        return tuple(self._sample(row) for row in batch.rows)

    def _sample(self, row: ScheduledRow) -> RowResult:
        if row.request_id in self.failed:
            return self.failed[row.request_id]
        end = row.start + len(row.token_ids)
        for table, window in zip(row.block_tables, self.kv_windows, strict=True):
            first_seen = 0 if window is None else max(0, row.start - window + 1)
            needed = table[first_seen // self.block_size : -(-end // self.block_size)]
            assert len(table) * self.block_size >= end, "the table covers the row"
            assert NULL_BLOCK not in needed, "and all that it sees"
        if row.sampling is None:
            return None
        if row.request_id in self.script:
            return RowOutput(self.script[row.request_id][row.num_outputs])
        return RowOutput(1 + (7919 * row.token_ids[-1] + row.start + len(row.token_ids)) % 1000)


@dataclass
class RememberingRunner(ScriptedRunner):
    """Keeps tokens where their keys would lie and samples from all that a row sees there, by its block tables.

    So whatever is lost, skipped, written over or computed at another place on the way changes the answer.
    """

    stored: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)  # (block, place) -> (position, token)

    def run(self, batch: StepBatch) -> tuple[RowResult, ...]:
        for row in batch.rows:
            for position, token_id in enumerate(row.token_ids, row.start):
                for table in row.block_tables:
                    self.stored[self._place(table, position)] = (position, token_id)
        return super().run(batch)

    def _sample(self, row: ScheduledRow) -> RowResult:
        result = super()._sample(row)
        if not isinstance(result, RowOutput):
            return result
        return RowOutput(1 + hash(tuple(self._seen(row))) % 1000)  # of integers: the same in every process

    def _seen(self, row: ScheduledRow) -> Iterator[tuple[int, int]]:
        """From the first token that the row's last one sees, in each KV group."""
        end = row.start + len(row.token_ids)
        for table, window in zip(row.block_tables, self.kv_windows, strict=True):
            first = 0 if window is None else max(0, end - window)
            for position in range(first, end):
                found = self.stored[self._place(table, position)]
                assert found[0] == position, f"{row.request_id}: position {position} holds that of {found[0]}"
                yield found

    def _place(self, table: Sequence[int], position: int) -> tuple[int, int]:
        return table[position // self.block_size], position % self.block_size


def engine_of(
    runner: ScriptedRunner,
    *,
    slots: int = 64,
    itl_seconds: float = 0.1,
    max_step_tokens: int = 2048,
    has_prefix_cache: bool = False,
) -> Engine:
    limits = BudgetLimits(itl_seconds=itl_seconds, max_step_tokens=max_step_tokens)
    return Engine(
        runner,
        slots=slots,
        limits=limits,
        clock=runner.clock,
        counters=Counters(),
        has_prefix_cache=has_prefix_cache,
    )


def request_of(
    request_id: str,
    num_prompt: int,
    max_tokens: int,
    *,
    stop_token_ids: frozenset[int] = frozenset({EOS}),
    terms: Terms = DEFAULT_TERMS,
    constraint: TokenConstraint | None = None,
    **sampling: object,
) -> Request:
    return new_request(
        request_id,
        [1 + i % 999 for i in range(num_prompt)],
        SamplingParams(max_tokens, stop_token_ids=stop_token_ids, **sampling),
        arrival_seconds=0.0,
        terms=terms,
        constraint=constraint,
    )


def run_until_idle(engine: Engine, *, max_steps: int = 10_000) -> dict[str, tuple[list[int], FinishReason | None]]:
    """Steps until nothing is left, the pool checked after each; tokens and finish reason by request."""
    answers: dict[str, tuple[list[int], FinishReason | None]] = {}
    for _ in range(max_steps):
        if not engine.has_work:
            return answers
        collect(answers, engine.step())
        engine.pool.check(engine.scheduler.running)
    raise AssertionError(f"still busy after {max_steps} steps: {engine.scheduler.running}")


def collect(answers: dict[str, tuple[list[int], FinishReason | None]], outputs: tuple[RequestOutput, ...]) -> None:
    for request_id, chunk in outputs:
        tokens, _ = answers.get(request_id, ([], None))
        answers[request_id] = (tokens + list(chunk.token_ids), chunk.finish_reason)
