"""What the next step computes. One rule: `num_computed_tokens` chases `num_tokens`, within one token budget a step.

Decoding requests come first and are never skipped (admission relies on it). What is left of the budget goes to prompts:
to those under way, then to new ones while the pool admits the head of the queue, guaranteed requests before spot ones.
Guaranteed requests are admitted as if there were no spot requests; these give way when blocks run short.
Pure bookkeeping: no clock, no tensors; the engine drives it, and so does any simulation of it.
"""

from enum import Enum, auto
from typing import NamedTuple

from tidegate_engine.counters import Counters
from tidegate_engine.request import FinishReason, Request, ServiceClass
from tidegate_engine.runner import ScheduledRow
from tidegate_engine.scheduling.blocks import BlockPool, blocks_for
from tidegate_engine.scheduling.chunks import PromptShares
from tidegate_engine.scheduling.fairness import OUTPUT_WEIGHT, TenantShare
from tidegate_engine.scheduling.lengths import OutputLengths
from tidegate_engine.scheduling.queue import RequestQueue
from tidegate_engine.scheduling.refusals import Refusals
from tidegate_engine.scheduling.rows import decode_rows, new_blocks_of, prefill_row
from tidegate_engine.scheduling.running import Running, claim_of
from tidegate_engine.scheduling.spot import next_victim

USUAL_OUTPUT_TOKENS = 300  # believed in where nobody says what is usual
MAX_PASSERS_ASKED = 4  # candidates behind a blocked head that a step looks at
BYPASS_EVERY_STEPS = 8  # who may pass changes little from one step to the next


class Step(NamedTuple):
    """Rows to run and the requests they belong to, in the same order."""

    rows: tuple[ScheduledRow, ...]
    requests: tuple[Request, ...]
    num_decoding: int  # the first so many
    num_tokens: int
    num_context_tokens: int


class Verdict(Enum):
    """What keeps the head of a line from starting."""

    STARTS = auto()
    NOBODY = auto()
    NO_PLACE = auto()  # slots or the step's prompt tokens
    NO_BLOCKS = auto()


class Scheduler:
    """Owns every request from admission to its end, and the queue's head while it decides about it."""

    def __init__(
        self,
        pool: BlockPool,
        queue: RequestQueue,
        *,
        slots: int,
        counters: Counters | None = None,
        lengths: OutputLengths | None = None,
    ) -> None:
        self.pool = pool
        self.queue = queue
        self.slots = slots
        self.num_ended = 0
        self._counters = counters or Counters()
        self._lengths = lengths or OutputLengths(USUAL_OUTPUT_TOKENS)
        self._running = Running(pool.num_blocks, pool.kv, self._lengths)
        self._refusals = Refusals()
        self._num_started = 0
        self._bypass_at_step = 0

    @property
    def running(self) -> tuple[Request, ...]:
        """Any thread may read it: it is replaced and never changed."""
        return self._running.all

    @property
    def num_decoding(self) -> int:
        return len(self._running.decoding)

    @property
    def num_reserved_blocks(self) -> int:
        """Any thread may read it."""
        return self._running.blocks_at_end

    @property
    def num_shared_blocks(self) -> int:
        """That guaranteed requests hold beside the one that is counted for them. Any thread may read it."""
        return self._running.shared.total

    def tenant_shares(self) -> tuple[TenantShare, ...]:
        """Of those with requests queued or running."""
        return self.queue.tenant_shares()

    def schedule(self, token_budget: int) -> Step:
        """The next step; blocks for all of its tokens are allocated."""
        self._running.num_steps += 1
        shares = PromptShares(token_budget - len(self._running.decoding), self.pool.block_size)
        for request in self._running.prefilling.values():
            shares.take(request)
        self._start_waiting(shares)
        chunks = shares.with_rest()
        if self._running.spot:
            chunks = self._make_room(chunks)
        requests = (*self._running.decoding.values(), *(request for request, _ in chunks))
        rows = decode_rows(self._running.decoding.values(), self.pool)
        rows += [prefill_row(request, num_tokens, self.pool) for request, num_tokens in chunks]
        return Step(
            tuple(rows),
            requests,
            num_decoding=len(self._running.decoding),
            num_tokens=len(self._running.decoding) + sum(num_tokens for _, num_tokens in chunks),
            num_context_tokens=sum([row.start for row in rows]),
        )

    def computed(self, request: Request, num_tokens: int, sampled: int | None) -> None:
        """Records what a step did for one request."""
        request.num_computed_tokens += num_tokens
        if request.num_lost_tokens:
            self._count_recomputed(request, num_tokens)
        if kept := self.pool.keep(request):
            self._running.keep(request, *kept)
        if sampled is not None:
            request.token_ids.append(sampled)
            if request.account:
                request.account.virtual_tokens += OUTPUT_WEIGHT
            prefilling = self._running.prefilling
            if prefilling and request.request_id in prefilling:
                self._running.begin_decoding(request)
                self.pool.leave_behind(request, request.num_tokens - 1)
                self._refusals.forget(request)

    def decoded(self, request: Request, sampled: int) -> None:
        """As computed(), of a request that was decoding already: one token for one. Called hundreds of times a step."""
        num_computed_tokens = request.num_computed_tokens + 1
        request.num_computed_tokens = num_computed_tokens
        if request.num_lost_tokens:
            self._count_recomputed(request, 1)
        if num_computed_tokens % self.pool.block_size == 0:
            self.pool.keep(request)  # an answer's: whoever goes on from it comes when it has ended, and shares nothing
        request.token_ids.append(sampled)
        account = request.account
        if account is not None:
            account.virtual_tokens += OUTPUT_WEIGHT

    def end(self, request_id: str, reason: FinishReason) -> Request | None:
        """The only way out, for running and for waiting requests; None if it has ended already."""
        running = self._running.get(request_id)
        request = running or self.queue.remove(request_id)
        if request is None:
            return None
        if running:
            self._stop(running)
        request.finish_reason = reason
        self.queue.end(request)
        is_cut_off = reason is not FinishReason.STOP
        self._lengths.observe(request.num_prompt_tokens, request.num_outputs, is_cut_off=is_cut_off)
        self.num_ended += 1
        return request

    def preempt(self, request: Request) -> None:
        """A running spot request gives all its blocks back and waits at the head of its class."""
        assert request.request_id in self._running.spot, f"{request.request_id} is no running spot request"
        request.num_lost_tokens = max(request.num_lost_tokens, request.num_computed_tokens)
        self._stop(request)
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        self._counters.preemptions += 1
        self.queue.put_back(request)

    def _start_waiting(self, shares: PromptShares) -> None:
        """A head that only the pool keeps waiting lets spot requests start, and small ones that do not delay it."""
        verdict = self._start_in_order(ServiceClass.GUARANTEED, shares)
        if verdict is Verdict.NO_BLOCKS:
            self._let_pass(shares)
        if verdict is not Verdict.NO_PLACE:
            self._start_in_order(ServiceClass.SPOT, shares)

    def _start_in_order(self, service_class: ServiceClass, shares: PromptShares) -> Verdict:
        while head := self.queue.head(service_class):
            self.pool.look_up(head)
            verdict = self._verdict(head, shares)
            if verdict is not Verdict.STARTS:
                return verdict
            self._start(head, shares)
        return Verdict.NOBODY

    def _verdict(self, head: Request, shares: PromptShares) -> Verdict:
        """A spot request leaves a slot for the guaranteed one that waits."""
        is_slot_kept = head.is_spot and self.queue.head(ServiceClass.GUARANTEED) is not None
        if len(self.running) + is_slot_kept >= self.slots or not shares.has_place(head):
            return Verdict.NO_PLACE
        return Verdict.STARTS if self._fits_with_hit(head, shares) else Verdict.NO_BLOCKS

    def _fits_with_hit(self, head: Request, shares: PromptShares) -> bool:
        """Takes what the prefix cache has if so: that may be less than it had when it was looked up."""
        is_partial = shares.is_partial(head)
        if not self._fits(head, is_partial=is_partial):
            return False
        self.pool.reuse(head)
        if shares.is_partial(head) == is_partial or self._fits(head, is_partial=True):
            return True
        self.pool.put_back(head)
        return False

    def _fits(self, head: Request, *, is_partial: bool) -> bool:
        """Whether the pool allows it now and for ever."""
        num_steps = self._running.num_steps
        if self._refusals.still_hold(head, num_steps, is_partial=is_partial):
            return False
        num_lacking = 0 if self._running.fits_in_full(head) else self._lacking_blocks(head, is_partial=is_partial)
        if num_lacking <= 0:
            return True
        self._refusals.note(head, num_steps + self._steps_until_fewer(num_lacking), is_partial=is_partial)
        return False

    def _lacking_blocks(self, candidate: Request, *, is_partial: bool) -> int:
        if candidate.is_spot and (num_lacking := self.pool.num_lacking(candidate.num_tokens)) > 0:
            return num_lacking  # in this step already, and the peak is no lower
        return self._running.lacking_blocks(candidate, self.pool.hit(candidate), is_partial=is_partial)

    def _steps_until_fewer(self, num_lacking: int) -> int:
        return self._running.steps_until_fewer(num_lacking)

    def _start(self, request: Request, shares: PromptShares) -> None:
        self.queue.remove(request.request_id)
        if request.start_number is None:
            self._num_started += 1
            request.start_number = self._num_started
            request.num_cached_tokens = request.num_computed_tokens
            if request.account:
                request.account.charge_prompt(request.num_prompt_tokens - request.num_computed_tokens)
        self._running.add(request)
        shares.take(request)
        self._refusals.forget(request)

    def _stop(self, request: Request) -> None:
        """It ends or is preempted."""
        self._running.remove(request)
        self.pool.release(request)
        self._refusals.forget(request)

    def _let_pass(self, shares: PromptShares) -> None:
        """Starts one request behind the blocked head whose whole prompt is in this step, if that delays the head never.

        Only while no prompt is under way: then it is known when everybody ends at the latest.
        """
        has_place = len(self.running) + 2 <= self.slots and shares.left > 0 and not shares.num_partial
        if not has_place or self._running.num_steps < self._bypass_at_step or not self._running.knows_last_holders:
            return
        self._bypass_at_step = self._running.num_steps + BYPASS_EVERY_STEPS
        head, *behind = self.queue.first(ServiceClass.GUARANTEED, 1 + MAX_PASSERS_ASKED)
        behind = [request for request in behind if not shares.is_partial(request)]
        for look in (self._running.blocked_at_most, self._running.blocked_as_likely):  # the second costs more
            if behind:
                blocked = look(head, self.pool.hit(head))
                behind = [request for request in behind if not blocked.is_delayed_by(claim_of(request))]
        for request in behind:
            if self._running.fits_in_full(request) or self._lacking_blocks(request, is_partial=False) <= 0:
                self.pool.reuse(request)
                if not shares.is_partial(request):
                    self._start(request, shares)
                    return
                self.pool.put_back(request)  # the cache has less of it than when it was looked up

    def _make_room(self, chunks: list[tuple[Request, int]]) -> list[tuple[Request, int]]:
        """Preempts spot requests until the pool has the blocks that this step needs."""
        num_groups = len(self.pool.kv.windows)
        most_new = sum(blocks_for(num_tokens, self.pool.block_size) + 1 for _, num_tokens in chunks)
        if num_groups * (len(self._running.decoding) + most_new) <= self.pool.num_free:
            return chunks
        new_blocks = new_blocks_of(self._running.decoding.values(), chunks, self.pool)
        num_new = sum(new_blocks.values())
        if num_new > self.pool.num_free:
            for request in self._running.decoding.values():
                self.pool.leave_behind(request, request.num_tokens - 1)
        while num_new > self.pool.num_free and self._running.spot:
            victim = next_victim(self._running.spot.values())
            num_new -= new_blocks.get(victim.request_id, 0)
            self.preempt(victim)
        return [chunk for chunk in chunks if chunk[0].request_id in self._running.prefilling]

    def _count_recomputed(self, request: Request, num_tokens: int) -> None:
        before = request.num_computed_tokens - num_tokens
        num_again = min(request.num_computed_tokens, request.num_lost_tokens) - before
        self._counters.recomputed_tokens += max(0, num_again)
        if request.num_computed_tokens >= request.num_lost_tokens:
            request.num_lost_tokens = 0
