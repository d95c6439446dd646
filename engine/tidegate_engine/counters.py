"""Cumulative facts of one engine process, as /load and /metrics report them.

Each field has one writing thread, told beside it: the event loop counts what comes and what leaves at the door, the
engine thread what its steps do. Readers on other threads see a value that is at most a step old.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from tidegate_engine.request import FinishReason
from tidegate_engine.tally import STEP_TOKENS, Tally
from tidegate_engine.timing import RequestTallies

Key = TypeVar("Key", bound=StrEnum)

COMPLETIONS = (FinishReason.STOP, FinishReason.LENGTH)


class Refusal(StrEnum):
    """Why a request was not accepted."""

    QUEUE_REQUESTS = "queue_requests"
    QUEUE_TOKENS = "queue_tokens"
    QUEUE_WAIT = "queue_wait"
    TENANT_SHARE = "tenant_share"
    DRAINING = "draining"
    NEVER_FITS = "never_fits"


LACK_OF_CAPACITY = (Refusal.QUEUE_REQUESTS, Refusal.QUEUE_TOKENS, Refusal.QUEUE_WAIT, Refusal.TENANT_SHARE)


def _zeros(keys: Iterable[Key]) -> dict[Key, int]:
    return dict.fromkeys(keys, 0)


@dataclass(slots=True)
class Counters:
    """Only ever grow. `arrivals` includes refusals for lack of capacity (`rejects`), never client errors."""

    # the event loop
    arrivals: int = 0
    refusals: dict[Refusal, int] = field(default_factory=lambda: _zeros(Refusal))
    tokens_after_stop: int = 0  # sampled after the text had ended in a stop string
    tokens_after_disconnect: int = 0  # sampled after the client had left

    requests: RequestTallies = field(default_factory=RequestTallies)

    # the engine thread
    finished: dict[FinishReason, int] = field(default_factory=lambda: _zeros(FinishReason))
    preemptions: int = 0
    recomputed_tokens: int = 0  # computed a second time after a preemption
    prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_queried_tokens: int = 0
    prefix_hit_tokens: int = 0
    step_tokens: Tally = field(default_factory=lambda: Tally(STEP_TOKENS))

    def count_wasted(self, left_by: FinishReason | None, num_tokens: int) -> None:
        """Tokens that came for a reader who had ended its request."""
        if left_by is FinishReason.STOP:
            self.tokens_after_stop += num_tokens
        elif left_by is FinishReason.ABORT:
            self.tokens_after_disconnect += num_tokens

    @property
    def prefix_hit_share(self) -> float:
        """Part of the prompt tokens that were asked for which were there already."""
        return min(1.0, self.prefix_hit_tokens / max(1, self.prefix_queried_tokens))

    @property
    def rejects(self) -> int:
        """Requests refused for lack of capacity."""
        return sum(self.refusals[refusal] for refusal in LACK_OF_CAPACITY)

    @property
    def completions(self) -> int:
        """Requests that ran to their end."""
        return sum(self.finished[reason] for reason in COMPLETIONS)

    @property
    def cancellations(self) -> int:
        return self.finished[FinishReason.ABORT]

    @property
    def errors(self) -> int:
        return self.finished[FinishReason.ERROR]
