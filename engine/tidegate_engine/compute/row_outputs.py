"""From hidden states to what a step has for each row: tokens, their log probabilities, those of prompts.

    hidden states -> rows that are sampled -> logits -> (raw log probabilities) -> adjusted, drawn -> RowOutput

The runner's second half. Masks of grammars are made here, after the forward pass was launched: on a GPU it still runs.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import accumulate, islice

import torch

from tidegate_engine.compute.adjustments import BITS_PER_BYTE, Adjustments, Penalties
from tidegate_engine.compute.logprobs import prompt_logprobs, raw_logprobs
from tidegate_engine.compute.sampler import NO_TOKEN, ROWS_AT_ONCE, Draw, sample
from tidegate_engine.errors import GrammarFailed, NoToken
from tidegate_engine.history import TokenHistory
from tidegate_engine.request import SamplingParams, TokenLogprobs
from tidegate_engine.runner import RowExtras, RowOutput, RowResult, ScheduledRow

NO_EXTRAS = RowExtras()


class RowOutputs:
    """`num_rows` of logits exist at a time; `entropy` seeds requests that bring no seed."""

    def __init__(
        self, logits_of: Callable[[torch.Tensor], torch.Tensor], *, num_rows: int, vocab_size: int, entropy: bytes
    ) -> None:
        self._logits_of = logits_of
        self._num_rows = num_rows
        self._vocab_size = vocab_size
        self._entropy = entropy

    def of(self, rows: Sequence[ScheduledRow], hidden: torch.Tensor) -> tuple[RowResult, ...]:
        """`hidden` [tokens, hidden_size] of the rows one after the other. A row's own failure takes its place."""
        ends = list(accumulate(len(row.token_ids) for row in rows))
        prompts = self._prompts(rows, ends, hidden)
        results: list[RowResult] = [
            RowOutput(None, None, prompts[row]) if row in prompts else None for row in range(len(rows))
        ]
        draws: dict[int, Draw] = {}
        for index, row in enumerate(rows):
            if row.sampling is not None:
                try:
                    draws[index] = self._draw(row, row.sampling)
                except GrammarFailed as error:
                    results[index] = error
        for index, token_id, logprobs in self._drawn(rows, ends, draws, hidden):
            results[index] = _output(rows[index], token_id, logprobs, prompts.get(index, ()))
        return tuple(results)

    def _prompts(
        self, rows: Sequence[ScheduledRow], ends: Sequence[int], hidden: torch.Tensor
    ) -> Mapping[int, tuple[TokenLogprobs, ...]]:
        asked = [(index, row.extras) for index, row in enumerate(rows) if row.extras and row.extras.prompt_targets]
        targets = [
            (ends[index] - len(rows[index].token_ids) + place, token_id, extras.num_prompt_logprobs)
            for index, extras in asked
            for place, token_id in enumerate(extras.prompt_targets)
        ]
        found = prompt_logprobs(hidden, targets, logits_of=self._logits_of, num_rows=self._num_rows)
        return {index: tuple(islice(found, len(extras.prompt_targets))) for index, extras in asked}

    def _drawn(
        self, rows: Sequence[ScheduledRow], ends: Sequence[int], draws: Mapping[int, Draw], hidden: torch.Tensor
    ) -> Iterator[tuple[int, int, TokenLogprobs | None]]:
        """(row, token, its log probabilities where asked)."""
        sampled = list(draws)
        for start in range(0, len(sampled), self._num_rows):
            chunk = sampled[start : start + self._num_rows]
            last_tokens = hidden[[ends[index] - 1 for index in chunk]]
            yield from self._drawn_chunk(rows, {index: draws[index] for index in chunk}, last_tokens)

    def _drawn_chunk(
        self, rows: Sequence[ScheduledRow], draws: Mapping[int, Draw], last_tokens: torch.Tensor
    ) -> Iterator[tuple[int, int, TokenLogprobs | None]]:
        """Its logits end with it, before those of the next chunk are made."""
        chunk = list(draws)
        logits = self._logits_of(last_tokens)
        group_size = ROWS_AT_ONCE if any(_num_logprobs(rows[index]) is not None for index in chunk) else len(chunk)
        for first in range(0, len(chunk), group_size):
            group = chunk[first : first + group_size]
            group_logits = logits[first : first + group_size]
            yield from _drawn_group(group, rows, group_logits, [draws[index] for index in group])

    def _draw(self, row: ScheduledRow, sampling: SamplingParams) -> Draw:
        """Raises GrammarFailed."""
        seed = self._own_seed(row.request_id) if sampling.seed is None else sampling.seed
        adjustments = self._adjustments(row, sampling)
        return Draw(
            sampling.temperature, sampling.top_k, sampling.top_p, seed, row.num_outputs, sampling.min_p, adjustments
        )

    def _adjustments(self, row: ScheduledRow, sampling: SamplingParams) -> Adjustments | None:
        extras = row.extras or NO_EXTRAS
        is_early = row.num_outputs < sampling.min_tokens
        if not (is_early or sampling.logit_bias or extras.history or extras.constraint):
            return None
        mask = extras.constraint.mask() if extras.constraint else None
        banned = tuple(token_id for token_id in sampling.stop_token_ids if token_id < self._vocab_size)
        return Adjustments(
            mask,
            banned if is_early and (mask is None or _allows_others(mask, banned)) else (),
            sampling.logit_bias,
            None if extras.history is None else _penalties(extras.history, sampling),
        )

    def _own_seed(self, request_id: str) -> int:
        """Differs between requests and processes, yet is the same when a step is repeated."""
        digest = blake2b(request_id.encode(), key=self._entropy, digest_size=8).digest()
        return int.from_bytes(digest, "little")


def _penalties(history: TokenHistory, sampling: SamplingParams) -> Penalties:
    return Penalties(history, sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty)


def _num_logprobs(row: ScheduledRow) -> int | None:
    return row.sampling.num_logprobs if row.sampling else None


def _drawn_group(
    group: Sequence[int], rows: Sequence[ScheduledRow], logits: torch.Tensor, draws: Sequence[Draw]
) -> Iterator[tuple[int, int, TokenLogprobs | None]]:
    num_tops = {place: num for place, index in enumerate(group) if (num := _num_logprobs(rows[index])) is not None}
    raw = raw_logprobs(logits[list(num_tops)], list(num_tops.values())) if num_tops else None
    tokens = sample(logits, draws)
    logprobs: dict[int, TokenLogprobs] = {}
    if raw:
        known = raw.of([max(tokens[place], 0) for place in num_tops])
        logprobs = dict(zip(num_tops, known, strict=True))
    for place, (index, token_id) in enumerate(zip(group, tokens, strict=True)):
        yield index, token_id, logprobs.get(place)


def _output(
    row: ScheduledRow, token_id: int, logprobs: TokenLogprobs | None, prompt: tuple[TokenLogprobs, ...]
) -> RowResult:
    if token_id == NO_TOKEN:
        return NoToken(
            f"request {row.request_id}, token {row.num_outputs}: no token can be drawn, the model's logits are not "
            "numbers or everything is forbidden; look for broken weights if it recurs"
        )
    return RowOutput(token_id, logprobs, prompt)


def _allows_others(mask: bytes, token_ids: Sequence[int]) -> bool:
    """Where the grammar is complete its end token may come, however early."""
    num_allowed = int.from_bytes(mask, "little").bit_count()
    return num_allowed > sum(
        mask[token_id // BITS_PER_BYTE] >> (token_id % BITS_PER_BYTE) & 1
        for token_id in token_ids
        if token_id < len(mask) * BITS_PER_BYTE
    )
