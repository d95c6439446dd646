"""Draws one token a row from logits: temperature, min-p, top-k, top-p, and the Gumbel-max trick.

argmax(logits / temperature + gumbel noise) is a draw from softmax(logits / temperature). The noise of a token is a hash
of (seed, index of the output, token id), so a request's answer does not depend on the batch it is computed in, nor on
how often a step is repeated. Called by the torch runner; works on any device.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tidegate_engine.compute.adjustments import Adjustments, adjust

ROWS_AT_ONCE = 8  # noise and sorting take a few copies of the logits they work on
LEAST_TEMPERATURE = 1e-5  # below, a draw is greedy but for ties, and logits / temperature leave the range of fp32
NO_TOKEN = -1  # of a row that offers none: a logit is NaN or infinite, or everything is forbidden
FIRST_CANDIDATES = 1024  # top-p rarely reaches further; sorting a whole vocabulary is slow on CPU
_MASK = (1 << 64) - 1


@dataclass(frozen=True)
class Draw:
    """How one row is drawn. Temperature 0 is greedy; top_k 0, top_p 1 and min_p 0 are off."""

    temperature: float
    top_k: int
    top_p: float
    seed: int
    index: int  # of the output token: 0 is the first one of the answer
    min_p: float = 0.0
    adjustments: Adjustments | None = None

    @property
    def is_greedy(self) -> bool:
        return self.temperature < LEAST_TEMPERATURE


def sample(logits: torch.Tensor, draws: Sequence[Draw]) -> list[int]:
    """Token ids for fp32 logits [rows, vocab_size], or NO_TOKEN; the logits are overwritten."""
    if all(draw.is_greedy and draw.adjustments is None for draw in draws):
        return _largest(logits)
    tokens: list[int] = []
    for start in range(0, len(draws), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        adjust(logits[rows], [draw.adjustments for draw in draws[rows]])
        tokens += _largest(_perturbed(logits[rows], draws[rows]))
    return tokens


def _largest(scores: torch.Tensor) -> list[int]:
    """Of NaN and another the larger is NaN, so the largest tells of all."""
    token_ids = scores.argmax(-1, keepdim=True)
    largest = scores.gather(1, token_ids)
    tokens: list[int] = torch.where(largest.isfinite(), token_ids, NO_TOKEN).squeeze(1).tolist()
    return tokens


def _perturbed(logits: torch.Tensor, draws: Sequence[Draw]) -> torch.Tensor:
    """Scaled, filtered logits plus noise; greedy rows pass unchanged."""
    device = logits.device
    if all(draw.is_greedy for draw in draws):
        return logits
    is_greedy = torch.tensor([[draw.is_greedy] for draw in draws], device=device)
    temperatures = torch.tensor([[1.0 if draw.is_greedy else draw.temperature] for draw in draws], device=device)
    logits /= temperatures
    if any(draw.min_p > 0 for draw in draws):
        min_p = torch.tensor([[draw.min_p] for draw in draws], device=device)
        logits.masked_fill_(logits < logits.amax(-1, keepdim=True) + min_p.log(), float("-inf"))
    if any(draw.top_k > 0 or draw.top_p < 1 for draw in draws):
        logits.masked_fill_(logits < _thresholds(logits, draws), float("-inf"))
    noise = gumbel_noise([(draw.seed, draw.index) for draw in draws], logits.shape[1], device)
    return logits.add_(noise.masked_fill_(is_greedy, 0.0))


def _thresholds(logits: torch.Tensor, draws: Sequence[Draw]) -> torch.Tensor:
    """The smallest logit that stays, [rows, 1]: top-k first, then top-p of what that leaves."""
    vocab_size = logits.shape[1]
    top_k = torch.tensor([[draw.top_k or vocab_size] for draw in draws], device=logits.device).clamp(max=vocab_size)
    top_p = torch.tensor([[draw.top_p] for draw in draws], device=logits.device)
    log_total = logits.logsumexp(-1, keepdim=True)
    num_candidates = min(FIRST_CANDIDATES, vocab_size)
    while True:
        ranked = logits.topk(num_candidates).values
        ranks = torch.arange(num_candidates, device=logits.device)
        in_top_k = ranked.masked_fill(ranks >= top_k, float("-inf"))
        total = torch.where(top_k < vocab_size, in_top_k.logsumexp(-1, keepdim=True), log_total)
        probabilities = (in_top_k - total).exp()
        mass_before = probabilities.cumsum(-1) - probabilities
        num_kept = ((mass_before < top_p) & (ranks < top_k)).sum(-1, keepdim=True).clamp(min=1)
        is_enough = (num_kept < num_candidates) | (top_k <= num_candidates)
        if num_candidates == vocab_size or bool(is_enough.all()):
            break
        num_candidates = vocab_size
    threshold = ranked.gather(1, num_kept - 1)
    is_off = (top_k == vocab_size) & (top_p >= 1)
    return threshold.masked_fill_(is_off, float("-inf"))


def gumbel_noise(keys: Sequence[tuple[int, int]], vocab_size: int, device: torch.device) -> torch.Tensor:
    """fp32 [rows, vocab_size] of independent standard Gumbel draws, one row a (seed, index)."""
    hashed = [_mix64(_mix64(seed & _MASK) ^ index) for seed, index in keys]
    low = torch.tensor([[_as_int32(key)] for key in hashed], dtype=torch.int32, device=device)
    high = torch.tensor([[_as_int32(key >> 32)] for key in hashed], dtype=torch.int32, device=device)
    bits = torch.arange(vocab_size, dtype=torch.int32, device=device) + low
    bits = _mix32(_mix32(bits) ^ high)
    uniform = ((bits >> 8) & 0xFFFFFF).float().add_(0.5).mul_(2.0**-24)  # in (0, 1), both ends excluded
    return uniform.log_().neg_().log_().neg_()


def _mix64(value: int) -> int:
    """The finaliser of SplitMix64 (Steele, Lea, Flood 2014): every input bit reaches every output bit."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _as_int32(value: int) -> int:
    """The low 32 bits, as a signed number."""
    low = value & 0xFFFFFFFF
    return low - (1 << 32) if low >= 1 << 31 else low


def _mix32(bits: torch.Tensor) -> torch.Tensor:
    """The finaliser of MurmurHash3 on int32, whose products wrap around; shifts are made logical by masks."""
    bits = bits ^ ((bits >> 16) & 0xFFFF)
    bits *= _as_int32(0x85EBCA6B)
    bits ^= (bits >> 13) & 0x7FFFF
    bits *= _as_int32(0xC2B2AE35)
    bits ^= (bits >> 16) & 0xFFFF
    return bits
