"""A small fleet on a virtual clock, to run the scaling policy in a closed loop: seeded, no I/O, hours in milliseconds.

A replica computes all its requests at once; a step costs more the more run, so that throughput saturates and latency
grows, as in an engine. Requests go to the replica with the fewest, queues are bounded, new replicas start cold.
"""

import random
from dataclasses import dataclass, field

from tidegate_core.samples import Counters, History, Memory, Round, Sample
from tidegate_core.scaling import Decision, Policy, decide

STEP_SECONDS = 0.5
SCRAPE_SECONDS = 5.0


@dataclass
class Replica:
    """One engine: `running` and `waiting` hold the tokens each request still needs."""

    name: str
    ready_at: float
    slots: int
    base_seconds: float = 0.02
    seconds_per_request: float = 0.01
    max_queue: int = 64
    running: list[float] = field(default_factory=list)
    waiting: list[float] = field(default_factory=list)
    arrivals: int = 0
    rejects: int = 0
    completions: int = 0

    @property
    def num_requests(self) -> int:
        return len(self.running) + len(self.waiting)

    def add(self, tokens: float) -> None:
        self.arrivals += 1
        if len(self.waiting) >= self.max_queue:
            self.rejects += 1
        else:
            self.waiting.append(tokens)

    def step(self) -> None:
        while self.waiting and len(self.running) < self.slots:
            self.running.append(self.waiting.pop(0))
        done = STEP_SECONDS / (self.base_seconds + self.seconds_per_request * len(self.running))
        left = [tokens - done for tokens in self.running]
        self.running = [tokens for tokens in left if tokens > 0]
        self.completions += len(left) - len(self.running)

    def sample(self, tokens_per_request: float) -> Sample:
        per_second = self.slots / (self.base_seconds + self.seconds_per_request * self.slots)
        eta_seconds = len(self.waiting) * tokens_per_request / per_second
        counters = Counters(self.arrivals, self.rejects, self.completions, 0)
        return Sample(
            self.name, counters, len(self.running), len(self.waiting), len(self.running), self.slots, eta_seconds
        )


@dataclass
class Fleet:
    """Replicas under the scaler. Without `is_noisy` requests come evenly and are all alike."""

    policy: Policy
    rng: random.Random
    is_noisy: bool = True
    tokens_per_request: float = 100.0
    owed: float = 0.0
    now: float = 0.0
    replicas: list[Replica] = field(default_factory=list)
    history: History = field(default_factory=lambda: History(Memory(desired=1)))
    decisions: list[Decision] = field(default_factory=list)
    num_created: int = 0

    def run(self, seconds: float, requests_per_second: float) -> None:
        """Poisson arrivals for that long."""
        end = self.now + seconds
        while self.now < end:
            self._resize(self.history.memory.desired)
            ready = [replica for replica in self.replicas if replica.ready_at <= self.now]
            for _ in range(self._num_arrivals(requests_per_second)):
                if ready:
                    min(ready, key=lambda replica: replica.num_requests).add(self._num_tokens())
            for replica in ready:
                replica.step()
            self.now += STEP_SECONDS
            if self.now % SCRAPE_SECONDS == 0:
                self._decide()

    def _num_arrivals(self, requests_per_second: float) -> int:
        if not self.is_noisy:
            self.owed += requests_per_second * STEP_SECONDS
            count = int(self.owed)
            self.owed -= count
            return count
        at, count = self.rng.expovariate(1.0), 0
        while at < requests_per_second * STEP_SECONDS:
            at, count = at + self.rng.expovariate(1.0), count + 1
        return count

    def _num_tokens(self) -> float:
        return self.rng.expovariate(1 / self.tokens_per_request) if self.is_noisy else self.tokens_per_request

    def _resize(self, desired: int) -> None:
        while len(self.replicas) < desired:
            cold = self.policy.cold_start_seconds if self.num_created else 0.0
            self.num_created += 1
            self.replicas.append(Replica(f"r{self.num_created}", self.now + cold, self.policy.slots))
        while len(self.replicas) > desired:
            self.replicas.remove(
                min(self.replicas, key=lambda replica: (replica.ready_at <= self.now, replica.num_requests))
            )

    def _decide(self) -> None:
        ready = [replica for replica in self.replicas if replica.ready_at <= self.now]
        samples = {replica.name: replica.sample(self.tokens_per_request) for replica in ready}
        self.history = self.history.add(Round(self.now, frozenset(samples), samples))
        decision = decide(self.history, self.policy, self.now)
        self.history = self.history.remember(decision.memory)
        self.decisions.append(decision)

    @property
    def sizes(self) -> list[int]:
        """Wanted sizes, each change once."""
        sizes = [1]
        for decision in self.decisions:
            if decision.desired != sizes[-1]:
                sizes.append(decision.desired)
        return sizes
