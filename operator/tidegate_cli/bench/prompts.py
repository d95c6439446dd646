"""Prompts of a wanted length for a server whose tokenizer nobody here knows.

Common words are about a token each in every vocabulary; how many exactly, and what a server adds of its own (BOS, a
chat template), is learned from the usage that two short requests report. Words are drawn from the request's own seed,
so that no two prompts share a prefix by accident; those with the same prefix ids share one on purpose.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files

from tidegate_cli.bench.workload import PlannedRequest

PREFIX_TOKENS = 512  # what a prefix id of a trace stands for
WORDS = files("tidegate_cli.bench").joinpath("words.txt").read_text(encoding="utf-8").split()


@dataclass(frozen=True)
class Lengths:
    """How a server counts: prompt tokens = overhead + words x tokens_per_word."""

    overhead_tokens: float = 0.0
    tokens_per_word: float = 1.0

    @classmethod
    def measured(cls, short: tuple[int, int], long: tuple[int, int]) -> "Lengths":
        """From two prompts' (words, tokens)."""
        per_word = (long[1] - short[1]) / (long[0] - short[0])
        if per_word <= 0:  # the server does not count
            return cls()
        return cls(short[1] - short[0] * per_word, per_word)

    def num_words(self, num_tokens: int) -> int:
        return max(1, round((num_tokens - self.overhead_tokens) / self.tokens_per_word))


def prompt_text(request: PlannedRequest, lengths: Lengths, seed: int) -> str:
    """The request's prompt: what its prefix ids stand for, then words of its own."""
    wanted = lengths.num_words(request.num_prompt_tokens)
    shared = list(_prefix_words(request, lengths))[:wanted]
    return " ".join([*shared, *words(f"{seed}/{request.index}", wanted - len(shared))])


def words(seed: str, num_words: int) -> list[str]:
    return random.Random(seed).choices(WORDS, k=num_words)


def _prefix_words(request: PlannedRequest, lengths: Lengths) -> Iterator[str]:
    num_words = round(PREFIX_TOKENS / lengths.tokens_per_word)
    for prefix_id in request.prefix_ids:
        yield from words(f"prefix/{prefix_id}", num_words)
