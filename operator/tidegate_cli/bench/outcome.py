"""What became of one request, as its client saw it."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum


class Ending(StrEnum):
    """COMPLETED: the whole answer came. REJECTED: told to come back later (429, 503). FAILED: anything else."""

    COMPLETED = "completed"
    REJECTED = "rejected"
    FAILED = "failed"


@dataclass(frozen=True)
class Outcome:
    """Moments are seconds since the run began; `event_seconds` are those at which text arrived."""

    ending: Ending
    sent_seconds: float
    ended_seconds: float
    event_seconds: tuple[float, ...] = ()
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    num_cached_tokens: int = 0
    status: int | None = None
    retry_after_seconds: float | None = None
    fault: str = ""

    @property
    def ttft_seconds(self) -> float | None:
        return self.event_seconds[0] - self.sent_seconds if self.event_seconds else None

    @property
    def e2e_seconds(self) -> float:
        return self.ended_seconds - self.sent_seconds

    @property
    def tpot_seconds(self) -> float | None:
        """Time per output token after the first: the mean inter-token latency of this one request."""
        if len(self.event_seconds) < 2 or self.num_output_tokens < 2:
            return None
        return (self.event_seconds[-1] - self.event_seconds[0]) / (self.num_output_tokens - 1)

    def gaps_seconds(self) -> Iterator[float]:
        """Between one piece of text and the next: what a reader sees standing still."""
        for earlier, later in zip(self.event_seconds, self.event_seconds[1:], strict=False):
            yield later - earlier
