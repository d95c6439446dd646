"""Which tokens a request has had so far, for penalties: counted as they come, never all over again each step.

The Request owns it together with its token ids; the sampler reads it. Requests without penalties never ask.
"""

from collections import Counter
from collections.abc import Mapping, Sequence


class TokenHistory:
    """A view on a request's live token ids, prompt first; they only ever grow."""

    def __init__(self, token_ids: Sequence[int], num_prompt_tokens: int) -> None:
        self._token_ids = token_ids
        self._num_prompt_tokens = num_prompt_tokens
        self._num_counted = num_prompt_tokens
        self._outputs: Counter[int] = Counter()
        self._prompt: frozenset[int] | None = None

    def output_counts(self) -> Mapping[int, int]:
        """How often each token was sampled."""
        if self._num_counted < len(self._token_ids):
            self._outputs.update(self._token_ids[self._num_counted :])
            self._num_counted = len(self._token_ids)
        return self._outputs

    def prompt_tokens(self) -> frozenset[int]:
        """Tokens that the prompt has."""
        if self._prompt is None:
            self._prompt = frozenset(self._token_ids[: self._num_prompt_tokens])
        return self._prompt
