"""A request while the engine holds it: its tokens, how far they are computed, and the KV blocks it owns.

There are no phases. `num_computed_tokens` chases `num_tokens`; a request whose prompt is not computed yet is
prefilling, one that has sampled a token is decoding, and both are scheduled by the same rule.

    waiting --admitted--> prefilling --first token--> decoding --stop | length--> finished
     |  ^                     |                          |
     |  +----- preempted -----+---- (spot requests) -----+
     +-------- cancel --------+----- cancel, error ------+----------------------> finished
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from tidegate_engine.grammar.base import TokenConstraint
from tidegate_engine.history import TokenHistory
from tidegate_engine.prefix_chain import PrefixChain
from tidegate_engine.scheduling.fairness import TenantAccount


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


class TokenLogprobs(NamedTuple):
    """Natural logarithms of the model's own probabilities, before temperature, penalties and masks; best first."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class TokenChunk(NamedTuple):
    """Tokens sampled since the last chunk. Only the last chunk has a finish reason.

    The last token of a STOP is a stop token and no text, unless `is_all_text`: then a grammar was complete.
    FinishReason.ABORT follows a cancel or the engine's stop, ERROR a step that failed for this request; both may carry
    no tokens.
    """

    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    logprobs: tuple[TokenLogprobs, ...] = ()  # one a token where asked for
    prompt_logprobs: tuple[TokenLogprobs | None, ...] = ()  # with the first token; None for the first of the prompt
    num_cached_tokens: int = 0  # with the first token: prompt tokens that the prefix cache had
    is_all_text: bool = False


def merged(chunks: Sequence[TokenChunk]) -> TokenChunk:
    """One chunk of at least one, for a reader that was slow."""
    if len(chunks) == 1:
        return chunks[0]
    return TokenChunk(
        tuple(token_id for chunk in chunks for token_id in chunk.token_ids),
        chunks[-1].finish_reason,
        tuple(logprobs for chunk in chunks for logprobs in chunk.logprobs),
        tuple(logprobs for chunk in chunks for logprobs in chunk.prompt_logprobs),
        sum(chunk.num_cached_tokens for chunk in chunks),
        chunks[-1].is_all_text,
    )


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are drawn and when generation ends. `top_k` 0 is off; temperature 0 is greedy.

    `stop_token_ids` are all tokens that end it, the model's own among them unless the client wants them ignored.
    Presence and frequency penalties look at the answer, the repetition penalty at prompt and answer, as in vLLM.
    Before `min_tokens` no end token is drawn. `num_logprobs` 0 asks for the sampled token's alone, n for n others too.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop_token_ids: frozenset[int] = frozenset()
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_tokens: int = 0
    num_logprobs: int | None = None
    num_prompt_logprobs: int | None = None

    @property
    def has_penalties(self) -> bool:
        return self.presence_penalty != 0 or self.frequency_penalty != 0 or self.repetition_penalty != 1


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
    block_tables: tuple[tuple[int, ...], ...] = ()  # one a KV group; nothing is held where there is none
    finish_reason: FinishReason | None = field(default=None)
    history: TokenHistory | None = None  # where penalties need it
    constraint: TokenConstraint | None = None
    prompt_logprobs: list[TokenLogprobs | None] = field(default_factory=list)  # of the first positions, where asked for
    account: TenantAccount | None = None  # what is computed for it counts for its tenant
    num_preemptions: int = 0
    num_lost_tokens: int = 0  # computed before a preemption took their keys and values
    start_number: int | None = None  # of its first admission, counted over all requests
    prefix_chain: PrefixChain | None = None  # where there is a prefix cache
    num_hit_tokens: int = 0  # while it waits: tokens that the prefix cache would have for it
    num_cached_tokens: int = 0  # prompt tokens that the prefix cache had at the first admission
    started_seconds: float | None = None  # when its first step began

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_tokens_at_end(self) -> int:
        """When max_tokens is reached."""
        return self.num_kv_tokens_at_end + 1

    @property
    def is_spot(self) -> bool:
        return self.terms.service_class is ServiceClass.SPOT

    @property
    def num_outputs(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_outputs_left(self) -> int:
        return self.num_kv_tokens_at_end + 1 - len(self.token_ids)

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
    *,
    constraint: TokenConstraint | None = None,
) -> Request:
    """A request nothing has been computed for."""
    num_prompt_tokens = len(prompt_token_ids)
    token_ids = list(prompt_token_ids)
    return Request(
        request_id,
        token_ids,
        num_prompt_tokens,
        sampling,
        arrival_seconds,
        num_kv_tokens_at_end=num_prompt_tokens + sampling.max_tokens - 1,
        terms=terms,
        history=TokenHistory(token_ids, num_prompt_tokens) if sampling.has_penalties else None,
        constraint=constraint,
    )


def default_max_tokens(context: int, num_prompt_tokens: int, output_tokens_p90: int) -> int:
    """What a request without max_tokens gets: finite, so that admission need not keep the whole context for it."""
    return max(1, min(context - num_prompt_tokens, max(1024, 4 * output_tokens_p90)))
