"""Random requests through the scheduler alone: who comes when, how many tokens a step has, and who ends early.

The property tests of the prefix cache and of shared blocks say what requests look like and what must hold.
"""

import random
from abc import ABC, abstractmethod

from tidegate_engine.request import FinishReason, Request
from tidegate_engine.scheduling.blocks import BlockPool, blocks_for
from tidegate_engine.scheduling.queue import RequestQueue
from tidegate_engine.scheduling.scheduler import Scheduler


class Talks(ABC):
    """A pool, its scheduler, and those who come. Tokens are 0 and 1, so that sequences have much in common."""

    def __init__(self, rng: random.Random, pool: BlockPool, *, slots: int, max_chunk: int) -> None:
        self.rng = rng
        self.pool = pool
        self.max_chunk = max_chunk
        self.queue = RequestQueue()
        self.scheduler = Scheduler(pool, self.queue, slots=slots)
        self.ended: list[Request] = []

    @abstractmethod
    def new_request(self, name: str) -> Request:
        """The next one that comes."""

    def check(self) -> None:
        """What must hold after each step."""
        self.pool.check(self.scheduler.running)
        assert not any(request.num_preemptions and not request.is_spot for request in self.scheduler.running)

    def run(self, num_requests: int) -> None:
        stop_chance = self.rng.choice([0.0, 0.0, 0.02, 0.2])
        num_arrived = 0
        while self.scheduler.running or self.queue or num_arrived < num_requests:
            while num_arrived < num_requests and self.rng.random() < 0.5:
                self.queue.add(self.new_request(str(num_arrived)))
                num_arrived += 1
            if self.scheduler.running or self.queue:
                self._step(stop_chance)
                self.check()
        assert self.pool.num_used == 0
        assert len(self.ended) == num_requests

    def _step(self, stop_chance: float) -> None:
        rng = self.rng
        step = self.scheduler.schedule(self.scheduler.num_decoding + rng.randint(1, self.max_chunk))
        assert step.rows, "whenever somebody waits or runs, somebody advances"
        for request, row in zip(step.requests, step.rows, strict=True):
            end = row.start + len(row.token_ids)
            assert row.start == request.num_computed_tokens < end <= request.num_tokens
            assert all(len(table) == blocks_for(end, self.pool.block_size) for table in row.block_tables)
            self.scheduler.computed(request, len(row.token_ids), rng.randint(0, 1) if row.sampling else None)
            is_complete = request.num_outputs >= request.sampling.max_tokens
            if is_complete or (row.sampling and rng.random() < stop_chance):
                self._end(request, FinishReason.STOP)
        if self.scheduler.running and rng.random() < 0.02:
            self._end(rng.choice(self.scheduler.running), FinishReason.ABORT)

    def _end(self, request: Request, reason: FinishReason) -> None:
        self.scheduler.end(request.request_id, reason)
        self.ended.append(request)
