"""A request while the engine holds it: its tokens, how far they are computed, and the KV blocks it owns.

There are no phases. `num_computed_tokens` chases `num_tokens`; a request whose prompt is not computed yet is
prefilling, one that has sampled a token is decoding, and both are scheduled by the same rule.

    waiting --admitted--> prefilling --first token--> decoding --stop | length--> finished
       |                      |                          |
       +------- cancel -------+----- cancel, error ------+----------------------> finished
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


class FinishReason(StrEnum):
    """Why a request ended; STOP and LENGTH are OpenAI's words."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class ServiceClass(StrEnum):
    """What was promised: a guaranteed request is never interrupted, a spot request uses memory that others leave.

    A spot request may lose its KV blocks to guaranteed ones; it is computed again then, and its answer is the same.
    """

    GUARANTEED = "guaranteed"
    SPOT = "spot"


@dataclass(frozen=True, slots=True)
class Terms:
    """Whose request this is and what it was promised. A lower priority goes first; "" is the one tenant without keys.

    Requests share cached prefixes only under the same `cache_salt`.
    """

    tenant: str = ""
    priority: int = 0
    service_class: ServiceClass = ServiceClass.GUARANTEED
    cache_salt: bytes = b""


DEFAULT_TERMS = Terms()


class TokenChunk(NamedTuple):
    """Tokens sampled since the last chunk. Only the last chunk has a finish reason; a stop token is its last token.

    FinishReason.ABORT follows a cancel or the engine's stop, ERROR a step that failed for this request; both may carry
    no tokens.
    """

    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are drawn and when generation ends. `top_k` 0 is off; temperature 0 is greedy."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False


@dataclass(slots=True, eq=False)
class Request:
    """Mutable, owned by the scheduler; `token_ids` is the prompt followed by what was sampled.

    `num_kv_tokens_at_end`: keys and values held when max_tokens is reached; those of the last token are never written.
    """

    request_id: str
    token_ids: list[int]
    num_prompt_tokens: int
    sampling: SamplingParams
    arrival_seconds: float
    num_kv_tokens_at_end: int
    terms: Terms = DEFAULT_TERMS
    num_computed_tokens: int = 0
    block_table: tuple[int, ...] = ()
    finish_reason: FinishReason | None = field(default=None)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_outputs(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def prompt_token_ids(self) -> list[int]:
        return self.token_ids[: self.num_prompt_tokens]

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]


def new_request(
    request_id: str,
    prompt_token_ids: Sequence[int],
    sampling: SamplingParams,
    arrival_seconds: float,
    terms: Terms = DEFAULT_TERMS,
) -> Request:
    """A request nothing has been computed for."""
    num_prompt_tokens = len(prompt_token_ids)
    return Request(
        request_id,
        list(prompt_token_ids),
        num_prompt_tokens,
        sampling,
        arrival_seconds,
        num_kv_tokens_at_end=num_prompt_tokens + sampling.max_tokens - 1,
        terms=terms,
    )


def default_max_tokens(context: int, num_prompt_tokens: int, output_tokens_p90: int) -> int:
    """What a request without max_tokens gets: finite, so that admission need not keep the whole context for it."""
    return max(1, min(context - num_prompt_tokens, max(1024, 4 * output_tokens_p90)))
