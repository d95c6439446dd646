"""Log probabilities of the model itself, before temperature, penalties and masks: vLLM's raw_logprobs.

Only rows that ask are looked at, and never more rows at once than there are logits: those of a long prompt would not
fit anywhere.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from tidegate_engine.request import TokenLogprobs


@dataclass(frozen=True)
class RawLogprobs:
    """Of a few rows, taken before their logits are overwritten."""

    logits: torch.Tensor  # fp32 [rows, vocab_size], a copy
    log_total: torch.Tensor  # [rows, 1]
    top_logprobs: list[list[float]]
    top_ids: list[list[int]]
    num_tops: Sequence[int]

    def of(self, token_ids: Sequence[int]) -> list[TokenLogprobs]:
        """One token for each row, whatever it is."""
        index = torch.tensor(token_ids, device=self.logits.device).unsqueeze(1)
        chosen: list[float] = (self.logits.gather(1, index) - self.log_total).squeeze(1).tolist()
        return [
            TokenLogprobs(token_id, logprob, tuple(zip(ids[:num_top], logprobs[:num_top], strict=True)))
            for token_id, logprob, ids, logprobs, num_top in zip(
                token_ids, chosen, self.top_ids, self.top_logprobs, self.num_tops, strict=True
            )
        ]


def raw_logprobs(logits: torch.Tensor, num_tops: Sequence[int]) -> RawLogprobs:
    """`num_tops`: of each row, how many of the most probable tokens. The logits are kept, not copied."""
    log_total = logits.logsumexp(-1, keepdim=True)
    top = logits.topk(min(max(num_tops), logits.shape[1]))
    return RawLogprobs(logits, log_total, (top.values - log_total).tolist(), top.indices.tolist(), num_tops)


def prompt_logprobs(
    hidden: torch.Tensor,
    targets: Sequence[tuple[int, int, int]],
    *,
    logits_of: Callable[[torch.Tensor], torch.Tensor],
    num_rows: int,
) -> Iterator[TokenLogprobs]:
    """In the order of `targets`, each (place in the step, the token that follows there, how many others).

    The logits of `num_rows` places exist at a time.
    """
    for start in range(0, len(targets), num_rows):
        places, token_ids, num_tops = zip(*targets[start : start + num_rows], strict=True)
        yield from raw_logprobs(logits_of(hidden[list(places)]), num_tops).of(token_ids)
