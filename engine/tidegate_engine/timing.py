"""What a client's wait was made of: marks on one request's way, and the tallies they end in.

    accepted --queue--> started --prefill--> first token --decode--> ended
             |<------------ time to first token ------->|

The engine thread marks the start; the loop sees the tokens and the end where it hands them over, so a slow reader
makes nobody's figures worse. A phase that a request never reached counts nowhere.
"""

from dataclasses import dataclass, field

from tidegate_engine.request import Request, TokenChunk
from tidegate_engine.tally import NUM_CHOICES, NUM_TOKENS, REQUEST_SECONDS, TOKEN_SECONDS, TTFT_SECONDS, Tally


def _seconds() -> Tally:
    return Tally(REQUEST_SECONDS)


def _tokens() -> Tally:
    return Tally(NUM_TOKENS)


@dataclass(slots=True)
class RequestTallies:
    """Written by the event loop's thread. Whole requests are counted when they end, however they end."""

    ttft_seconds: Tally = field(default_factory=lambda: Tally(TTFT_SECONDS))
    itl_seconds: Tally = field(default_factory=lambda: Tally(TOKEN_SECONDS))
    token_seconds: Tally = field(default_factory=lambda: Tally(TOKEN_SECONDS))  # mean of an answer after its first
    total_seconds: Tally = field(default_factory=_seconds)
    queue_seconds: Tally = field(default_factory=_seconds)
    inference_seconds: Tally = field(default_factory=_seconds)
    prefill_seconds: Tally = field(default_factory=_seconds)
    decode_seconds: Tally = field(default_factory=_seconds)
    prompt_tokens: Tally = field(default_factory=_tokens)
    output_tokens: Tally = field(default_factory=_tokens)
    max_tokens: Tally = field(default_factory=_tokens)
    num_choices: Tally = field(default_factory=lambda: Tally(NUM_CHOICES))


@dataclass(slots=True)
class RequestTimes:
    """Marks of one request; `request.started_seconds` is the engine thread's."""

    request: Request
    tallies: RequestTallies
    first_token_seconds: float | None = None
    last_token_seconds: float = 0.0
    num_outputs: int = 0

    def saw(self, chunk: TokenChunk, now: float) -> None:
        """One step's chunk, at the moment it is handed over."""
        if chunk.token_ids:
            self._token(now, len(chunk.token_ids))
        if chunk.finish_reason is not None:
            self._ended(now)

    def _token(self, now: float, num_tokens: int) -> None:
        if self.first_token_seconds is None:
            self.first_token_seconds = now
            self.tallies.ttft_seconds.observe(now - self.request.arrival_seconds)
        else:
            self.tallies.itl_seconds.observe(now - self.last_token_seconds)
        self.num_outputs += num_tokens
        self.last_token_seconds = now

    def _ended(self, now: float) -> None:
        request, tallies = self.request, self.tallies
        tallies.prompt_tokens.observe(request.num_prompt_tokens)
        tallies.output_tokens.observe(self.num_outputs)
        tallies.max_tokens.observe(request.sampling.max_tokens)
        tallies.total_seconds.observe(now - request.arrival_seconds)
        if (started := request.started_seconds) is not None:
            tallies.queue_seconds.observe(started - request.arrival_seconds)
            tallies.inference_seconds.observe(now - started)
            if (first := self.first_token_seconds) is not None:
                tallies.prefill_seconds.observe(first - started)
                tallies.decode_seconds.observe(self.last_token_seconds - first)
                if self.num_outputs > 1:
                    tallies.token_seconds.observe((self.last_token_seconds - first) / (self.num_outputs - 1))
