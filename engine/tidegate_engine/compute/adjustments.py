"""What a request changes about its logits before a token is drawn: grammar mask, bans, biases, penalties; as vLLM.

    mask, bans -> bias -> repetition -> frequency, presence    (then, in sampler.py: temperature, min-p, top-k, top-p)

Rows without any of it are not touched. Work is on the few tokens concerned, never on a whole vocabulary in Python.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from tidegate_engine.history import TokenHistory

BITS_PER_BYTE = 8


@dataclass(frozen=True)
class Penalties:
    """Over the answer's tokens, `repetition` also over the prompt's. 0, 0 and 1 are off."""

    history: TokenHistory
    presence: float
    frequency: float
    repetition: float


@dataclass(frozen=True)
class Adjustments:
    """Of one row. `mask`: one bit a token id, set where the token may come; `banned` tokens may not come either."""

    mask: bytes | None = None
    banned: tuple[int, ...] = ()
    bias: tuple[tuple[int, float], ...] = ()
    penalties: Penalties | None = None


def adjust(logits: torch.Tensor, adjustments: Sequence[Adjustments | None]) -> None:
    """Changes logits [rows, vocab_size] in place."""
    rows = [(row, each) for row, each in enumerate(adjustments) if each]
    _mask(logits, [(row, each.mask) for row, each in rows if each.mask is not None])
    bans = [(row, token_id, float("-inf")) for row, each in rows for token_id in each.banned]
    biases = [(row, token_id, bias) for row, each in rows for token_id, bias in each.bias]
    _add(logits, bans + biases)
    _penalise(logits, [(row, each.penalties) for row, each in rows if each.penalties])


def _mask(logits: torch.Tensor, masks: Sequence[tuple[int, bytes]]) -> None:
    """Token ids that a mask is too short for, padding of the embedding, are not allowed."""
    if not masks:
        return
    num_bytes = -(-logits.shape[1] // BITS_PER_BYTE)
    packed = b"".join(mask[:num_bytes].ljust(num_bytes, b"\0") for _, mask in masks)
    octets = torch.frombuffer(bytearray(packed), dtype=torch.uint8).to(logits.device).view(len(masks), num_bytes, 1)
    bits = (octets >> torch.arange(BITS_PER_BYTE, dtype=torch.uint8, device=logits.device)) & 1
    is_banned = bits.view(len(masks), -1)[:, : logits.shape[1]] == 0
    rows = [row for row, _ in masks]
    if len(rows) == len(logits):
        logits.masked_fill_(is_banned, float("-inf"))
    else:
        logits[rows] = logits[rows].masked_fill_(is_banned, float("-inf"))


def _add(logits: torch.Tensor, terms: Sequence[tuple[int, int, float]]) -> None:
    if not terms:
        return
    rows, token_ids, values = (list(column) for column in zip(*terms, strict=True))
    index = _index(rows, token_ids, logits.device)
    logits.index_put_(index, torch.tensor(values, device=logits.device), accumulate=True)


def _penalise(logits: torch.Tensor, penalties: Sequence[tuple[int, Penalties]]) -> None:
    """A repeated token becomes less probable, whichever sign its logit has."""
    entries = [entry for row, each in penalties for entry in _entries(row, each)]
    if not entries:
        return
    rows, token_ids, factors, terms = (list(column) for column in zip(*entries, strict=True))
    index = _index(rows, token_ids, logits.device)
    factor = torch.tensor(factors, device=logits.device)
    values = logits[index]
    values = torch.where(values > 0, values / factor, values * factor)
    logits[index] = values - torch.tensor(terms, device=logits.device)


def _entries(row: int, penalties: Penalties) -> Iterator[tuple[int, int, float, float]]:
    """(row, token id, repetition's factor, what is taken off) of each token concerned, once."""
    counts = penalties.history.output_counts()
    for token_id, count in counts.items():
        yield row, token_id, penalties.repetition, penalties.frequency * count + penalties.presence
    if penalties.repetition != 1:
        for token_id in penalties.history.prompt_tokens():
            if token_id not in counts:
                yield row, token_id, penalties.repetition, 0.0


def _index(rows: list[int], token_ids: list[int], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor(rows, device=device), torch.tensor(token_ids, device=device)
