"""What the next step computes. One rule: `num_computed_tokens` chases `num_tokens`, within one token budget a step.

Decoding requests come first and are never skipped (admission relies on it). What is left of the budget goes to prompts:
a floor to each that is under way, then to new ones while the pool admits the head of the queue, then the rest to the
first come. So a short prompt beside a huge one advances, and equal ones still finish one after the other.
Pure bookkeeping: no clock, no tensors; the engine drives it, and so does any simulation of it.
"""

from typing import NamedTuple

from tidegate_engine.request import FinishReason, Request, ServiceClass
from tidegate_engine.runner import ScheduledRow, row_extras
from tidegate_engine.scheduling.admission import Claim, peak_blocks
from tidegate_engine.scheduling.blocks import BlockPool
from tidegate_engine.scheduling.queue import RequestQueue

MAX_PARTIAL_PROMPTS = 4  # prompts left unfinished by a step; more would only hold blocks and delay each other
FLOOR_SHARE = 8  # each of them gets at least this part of the prompt budget: the first keeps more than half


class Step(NamedTuple):
    """Rows to run and the requests they belong to, in the same order."""

    rows: tuple[ScheduledRow, ...]
    requests: tuple[Request, ...]
    num_tokens: int
    num_context_tokens: int


class Scheduler:
    """Owns every request from admission to its end, and the queue's head while it decides about it."""

    def __init__(self, pool: BlockPool, queue: RequestQueue, *, slots: int) -> None:
        self.pool = pool
        self.queue = queue
        self.slots = slots
        self.running: tuple[Request, ...] = ()  # replaced, never changed: other threads may read it
        self.num_ended = 0
        self._decoding: dict[str, Request] = {}
        self._prefilling: dict[str, Request] = {}
        self._blocks_at_end = 0  # what all running requests hold if each reaches its max_tokens
        self._refused: tuple[str, bool] | None = None  # last verdict of the pool, until somebody starts or ends
        self._steps_to_verdict = 0  # or until so many steps have passed

    @property
    def num_decoding(self) -> int:
        return len(self._decoding)

    def schedule(self, token_budget: int) -> Step:
        """The next step; blocks for all of its tokens are allocated."""
        self._steps_to_verdict -= 1
        chunks = self._share_prompt_budget(token_budget - len(self._decoding))
        requests = (*self._decoding.values(), *(request for request, _ in chunks))
        rows = [self._decode_row(request) for request in self._decoding.values()]
        rows += [self._prefill_row(request, num_tokens) for request, num_tokens in chunks]
        return Step(
            tuple(rows),
            requests,
            num_tokens=len(self._decoding) + sum(num_tokens for _, num_tokens in chunks),
            num_context_tokens=sum(row.start for row in rows),
        )

    def computed(self, request: Request, num_tokens: int, sampled: int | None) -> None:
        """Records what a step did for one request."""
        request.num_computed_tokens += num_tokens
        if sampled is not None:
            request.token_ids.append(sampled)
            if request.num_outputs == 1:
                self._decoding[request.request_id] = self._prefilling.pop(request.request_id)
                self.pool.leave_behind(request, request.num_tokens - 1)
                self._refused = None

    def end(self, request_id: str, reason: FinishReason) -> Request | None:
        """The only way out, for running and for waiting requests; None if it has ended already."""
        running = self._decoding.pop(request_id, None) or self._prefilling.pop(request_id, None)
        request = running or self.queue.remove(request_id)
        if request is None:
            return None
        if running:
            self._blocks_at_end -= self._end_blocks(running)
            self.pool.release(running)
            self._publish()
        request.finish_reason = reason
        self.queue.end(request)
        self._refused = None
        self.num_ended += 1
        return request

    def _share_prompt_budget(self, budget: int) -> list[tuple[Request, int]]:
        """Prompt tokens of this step by request, first come first."""
        left = max(budget, 0)
        floor = max(self.pool.block_size, left // FLOOR_SHARE)
        chunks: list[tuple[Request, int]] = []
        num_partial = 0
        for request in self._prefilling.values():
            chunk = _first_share(request, floor, left, num_partial)
            chunks.append((request, chunk))
            left -= chunk
            num_partial += chunk < _missing(request)
        while left > 0 and (head := self.queue.head(ServiceClass.GUARANTEED) or self.queue.head(ServiceClass.SPOT)):
            chunk = _first_share(head, floor, left, num_partial)
            is_partial = chunk < _missing(head)
            if (is_partial and num_partial >= MAX_PARTIAL_PROMPTS) or not self._admit(head, is_partial=is_partial):
                break
            chunks.append((head, chunk))
            left -= chunk
            num_partial += is_partial
        return self._give_rest(chunks, left)

    @staticmethod
    def _give_rest(chunks: list[tuple[Request, int]], left: int) -> list[tuple[Request, int]]:
        shared = []
        for request, chunk in chunks:
            more = min(_missing(request) - chunk, left)
            left -= more
            if chunk + more:
                shared.append((request, chunk + more))
        return shared

    def _admit(self, request: Request, *, is_partial: bool) -> bool:
        """Moves the head of the queue into the running set if slots and pool allow it now and for ever."""
        if len(self.running) >= self.slots:
            return False
        if self._refused == (request.request_id, is_partial) and self._steps_to_verdict > 0:
            return False
        blocks_at_end = self._end_blocks(request)
        if self._blocks_at_end + blocks_at_end > self.pool.num_blocks:
            num_lacking = self._lacking_blocks(request, is_partial)
            if num_lacking > 0:
                self._refused = (request.request_id, is_partial)
                self._steps_to_verdict = self._steps_until_fewer(num_lacking)
                return False
        self.queue.remove(request.request_id)
        self._prefilling[request.request_id] = request
        self._blocks_at_end += blocks_at_end
        self._publish()
        return True

    def _lacking_blocks(self, candidate: Request, is_partial: bool) -> int:
        """By the peak formula. A candidate whose whole prompt is in this step is in lockstep from now on.

        Unless it holds more in this step than in the next: then it is counted like a prompt that takes longer.
        """
        kv = self.pool.kv
        is_partial |= kv.prefilling_blocks(candidate.num_tokens) > kv.decoding_blocks(candidate.num_tokens)
        decoding = [_claim(request) for request in self._decoding.values()]
        prefilling = [_claim(request) for request in self._prefilling.values()]
        (prefilling if is_partial else decoding).append(_claim(candidate))
        num_blocks = self.pool.num_blocks
        return peak_blocks(decoding, prefilling, kv, at_least=num_blocks) - num_blocks

    def _steps_until_fewer(self, num_lacking: int) -> int:
        """Steps before which the verdict cannot change: whoever starts later holds less when the others end.

        That is a block less for every `block_size` steps (at once for the first), in each KV group of the candidate
        and of each prompt.
        """
        num_growing = len(self.pool.kv.windows) * (1 + len(self._prefilling))
        blocks_each = -(-num_lacking // num_growing)
        return (blocks_each - 1) * self.pool.block_size + 1

    def _decode_row(self, request: Request) -> ScheduledRow:
        start = len(request.token_ids) - 1
        if start % self.pool.block_size == 0:
            self.pool.grow(request, start + 1)
        return ScheduledRow(
            request.request_id,
            (request.token_ids[-1],),
            start,
            request.block_tables,
            request.sampling,
            start + 1 - request.num_prompt_tokens,
            row_extras(request, start, start + 1),
        )

    def _prefill_row(self, request: Request, num_tokens: int) -> ScheduledRow:
        start = request.num_computed_tokens
        end = start + num_tokens
        self.pool.grow(request, end, start)
        return ScheduledRow(
            request.request_id,
            tuple(request.token_ids[start:end]),
            start,
            request.block_tables,
            request.sampling if end == request.num_tokens else None,
            request.num_outputs,
            row_extras(request, start, end),
        )

    def _end_blocks(self, request: Request) -> int:
        return self.pool.kv.prefilling_blocks(request.num_kv_tokens_at_end)

    def _publish(self) -> None:
        self.running = (*self._decoding.values(), *self._prefilling.values())


def _missing(request: Request) -> int:
    return len(request.token_ids) - request.num_computed_tokens


def _first_share(request: Request, floor: int, left: int, num_partial: int) -> int:
    """All it misses if that completes it and everybody before is complete too; else the floor."""
    missing = _missing(request)
    return missing if missing <= left and not num_partial else min(missing, floor, left)


def _claim(request: Request) -> Claim:
    held = len(request.token_ids) - 1
    return Claim(request.num_kv_tokens_at_end - held, held)
