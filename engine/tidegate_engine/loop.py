"""The engine's thread and its asyncio side: the one object that servers hold.

loop = EngineLoop(runner=..., sizing=EngineSizing(...), settings=LoopSettings(...))
loop.start()                                   # inside a running event loop
stream = loop.submit(request_id, prompt_token_ids, sampling)
async for chunk in stream: ...
loop.drain(); ...wait for is_idle...; await loop.stop()

event loop's thread                            engine thread
submit: door -> queue --------------------->   step: queue -> scheduler -> runner
Stream.cancel, complete ----------------->     applied before the next step
streams <------ call_soon_threadsafe -------   one hand-over a step, for all of its outputs
"""

import asyncio
import logging
import math
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

from tidegate_core.kv_demand import KvDemand
from tidegate_core.telemetry import EngineSizing, LoadReport
from tidegate_engine.counters import Counters
from tidegate_engine.engine import Engine, RequestOutput
from tidegate_engine.errors import Draining, EngineFailed, Refused
from tidegate_engine.grammar.base import TokenConstraint
from tidegate_engine.request import DEFAULT_TERMS, FinishReason, SamplingParams, Terms, TokenChunk, new_request
from tidegate_engine.runner import Runner
from tidegate_engine.scheduling.admission import check_can_ever_fit
from tidegate_engine.scheduling.budget import BudgetLimits
from tidegate_engine.scheduling.door import Door
from tidegate_engine.scheduling.queue import QueueLimits
from tidegate_engine.stream import Stream
from tidegate_engine.timing import RequestTimes

log = logging.getLogger(__name__)

STOP_SECONDS = 10.0  # far longer than a step, far shorter than a pod's grace
MIN_REQUESTS = 100  # before one in a hundred means anything
DRAINING_RETRY_SECONDS = 1.0  # another replica can be tried at once; the client only has to reach it


@dataclass(frozen=True)
class LoopSettings:
    """What the launch contract says about the queue and the objectives; p90 lengths feed predictions."""

    max_queue: int = 64
    max_wait_seconds: float = 30.0
    max_queue_tokens: int | None = None
    prompt_tokens: int = 900
    output_tokens: int = 300
    itl_seconds: float = 0.1
    has_prefix_cache: bool = True

    def within(self, num_tokens: int) -> Self:
        """A usual request no longer than the longest this engine takes, prompt and output in the same proportion."""
        usual = self.prompt_tokens + self.output_tokens
        if usual <= num_tokens:
            return self
        output_tokens = max(1, num_tokens * self.output_tokens // usual)
        return replace(self, prompt_tokens=max(1, num_tokens - output_tokens), output_tokens=output_tokens)


class EngineLoop:
    """Methods belong to the event loop's thread, the one that calls start()."""

    def __init__(
        self,
        *,
        runner: Runner,
        sizing: EngineSizing,
        settings: LoopSettings,
        counters: Counters | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.counters = counters or Counters()
        self.boot_id = secrets.token_hex(8)
        self._sizing = sizing
        kv = KvDemand(runner.kv_windows, runner.block_size)
        self._longest_sequence = kv.longest_sequence(runner.num_blocks, sizing.context)
        self._settings = settings = settings.within(self._longest_sequence)
        self._clock = clock
        self._engine = Engine(
            runner,
            slots=sizing.slots,
            limits=BudgetLimits(itl_seconds=settings.itl_seconds),
            clock=clock,
            counters=self.counters,
            usual_output_tokens=settings.output_tokens,
            has_prefix_cache=settings.has_prefix_cache,
        )
        self._door = Door(
            self._engine,
            QueueLimits(settings.max_queue, settings.max_wait_seconds, settings.max_queue_tokens),
            clock=clock,
        )
        self._streams: dict[str, Stream] = {}
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._wakeup = threading.Event()
        self._is_stopping = False
        self._is_draining = False
        self._failure: Exception | None = None
        self._progress_at = clock()

    @property
    def is_draining(self) -> bool:
        return self._is_draining

    @property
    def num_waiting(self) -> int:
        """Asked for every answer: load() would also predict a wait."""
        return len(self._engine.queue)

    @property
    def most_at_once(self) -> int:
        """Requests that an idle engine runs and lets wait together: of more it refuses some, however often asked."""
        return self._engine.scheduler.slots + self._settings.max_queue

    @property
    def is_idle(self) -> bool:
        """Whether every accepted request has ended and its stream was told."""
        return not self._streams

    def start(self) -> None:
        """Starts the engine thread; streams belong to the event loop that is running now."""
        self._event_loop = asyncio.get_running_loop()
        self._thread.start()

    async def stop(self, step_seconds: float = STOP_SECONDS) -> bool:
        """Ends the thread after the step in progress; what still runs ends with FinishReason.ABORT. Idempotent.

        False if that step took longer than `step_seconds`: the thread is stuck in it, and nothing can end it.
        """
        self._is_stopping = True
        self._wakeup.set()
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join, step_seconds)
        self._end_all(FinishReason.ABORT)
        return not self._thread.is_alive()

    def submit(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        sampling: SamplingParams,
        terms: Terms = DEFAULT_TERMS,
        constraint: TokenConstraint | None = None,
    ) -> Stream:
        """An accepted request always ends. A constraint serves one request and is the engine's from now on.

        Raises BadRequest, NeverFits, QueueFull, TenantOverShare, Draining or EngineFailed.
        """
        try:
            return self._accept(request_id, prompt_token_ids, sampling, terms, constraint)
        except Refused as error:
            self.counters.refusals[error.refusal] += 1
            raise

    def _accept(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        sampling: SamplingParams,
        terms: Terms,
        constraint: TokenConstraint | None,
    ) -> Stream:
        self._check_open()
        check_can_ever_fit(
            len(prompt_token_ids),
            sampling.max_tokens,
            context=self._sizing.context,
            pool_tokens=self._longest_sequence,
        )
        assert request_id not in self._streams, f"request id {request_id} is in use"
        self.counters.arrivals += 1
        request = new_request(request_id, prompt_token_ids, sampling, self._clock(), terms, constraint=constraint)
        self._engine.pool.hash_tokens(request)
        wait_seconds = self._door.enter(request)
        if not self._streams:
            self._progress_at = self._clock()
        times = RequestTimes(request, self.counters.requests)
        stream = self._streams[request_id] = Stream(request_id, self._end_soon, times, wait_seconds=wait_seconds)
        self._wakeup.set()
        return stream

    def load(self) -> LoadReport:
        """What the operator scales on and gateways route by."""
        running = len(self._engine.scheduler.running)
        return LoadReport(
            boot_id=self.boot_id,
            arrivals=self.counters.arrivals,
            rejects=self.counters.rejects,
            completions=self.counters.completions,
            preemptions=self.counters.preemptions,
            running=running,
            waiting=self.num_waiting,
            kv_blocks_used=self._engine.pool.num_used,
            kv_blocks_total=self._engine.pool.num_blocks,
            kv_blocks_cached=self.num_cached_blocks,
            prefix_hit_share=self.counters.prefix_hit_share,
            request_p99_seconds=self._request_p99_seconds(),
            eta_seconds=self._door.wait_seconds(self._settings.prompt_tokens, self._settings.output_tokens),
            draining=self._is_draining,
            step_fit=self._engine.step_times.report(),
            sizing=self._sizing,
        )

    def _request_p99_seconds(self) -> float | None:
        seen = self.counters.requests.total_seconds
        return seen.quantile(0.99) if seen.count >= MIN_REQUESTS else None

    @property
    def num_reserved_blocks(self) -> int:
        """What running requests hold at most, each at its own end; shared prefixes are counted once for each."""
        return self._engine.scheduler.num_reserved_blocks

    @property
    def num_cached_blocks(self) -> int:
        """Blocks that nobody holds and that the prefix cache would find again."""
        return self._engine.pool.num_cached

    def tenant_shares(self) -> Mapping[str, float]:
        """Each tenant's part of all tokens that those who wait or run ask for."""
        return {found.tenant: found.share for found in self._engine.queue.tenant_shares()}

    def drain(self) -> None:
        """Refuses new requests from now on; accepted ones, waiting or running, finish."""
        self._is_draining = True

    def undrain(self) -> None:
        self._is_draining = False

    def last_step_age_seconds(self) -> float:
        """0 when there is nothing to do, infinite when the engine has failed."""
        if self._failure is not None:
            return math.inf
        return self._clock() - self._progress_at if self._streams else 0.0

    @property
    def is_stuck(self) -> bool:
        """Failed for good, or in a step that takes far longer than such a step can: only a new process helps."""
        return self.last_step_age_seconds() > self._engine.patience.seconds

    def _check_open(self) -> None:
        if self._failure is not None:
            raise EngineFailed(f"the engine has failed and must be restarted: {self._failure}") from self._failure
        if self._is_draining or self._is_stopping:
            raise Draining(
                "this engine is draining: retry on another replica", retry_after_seconds=DRAINING_RETRY_SECONDS
            )

    def _end_soon(self, request_id: str, reason: FinishReason) -> None:
        self._engine.end_soon(request_id, reason)
        self._wakeup.set()

    def _run(self) -> None:
        """The engine thread."""
        try:
            while True:
                self._wakeup.clear()  # before the conditions are read, so that no wake-up is lost
                if self._is_stopping:
                    return
                if not self._engine.has_work:
                    self._wakeup.wait()
                    continue
                outputs = self._engine.step()
                self._progress_at = self._clock()
                if outputs:
                    self._hand_over(partial(self._deliver, outputs))
        except Exception as error:
            log.exception("the engine thread ends: its process must be restarted")
            self._failure = error
            self._hand_over(partial(self._end_all, FinishReason.ERROR))

    def _hand_over(self, work: Callable[[], None]) -> None:
        if not self._event_loop.is_closed():  # the process is going away without stop(): nobody listens
            self._event_loop.call_soon_threadsafe(work)

    def _deliver(self, outputs: tuple[RequestOutput, ...]) -> None:
        now = self._clock()
        for request_id, chunk in outputs:
            stream = self._streams.pop(request_id, None) if chunk.finish_reason else self._streams.get(request_id)
            if stream:  # else stop() has ended it
                stream.push(chunk)
                stream.times.saw(chunk, now)
                self.counters.count_wasted(stream.left_by, len(chunk.token_ids))

    def _end_all(self, reason: FinishReason) -> None:
        streams, self._streams = self._streams, {}
        chunk, now = TokenChunk((), reason), self._clock()
        for stream in streams.values():
            stream.push(chunk)
            stream.times.saw(chunk, now)
