"""Log probabilities in the shapes of OpenAI's two APIs, and of prompts in vLLM's. rendering.py calls it.

A token is written by its own bytes; half a character is U+FFFD in `token` and exact in `bytes`.
"""

from collections.abc import Callable, Sequence

from tidegate_engine.request import TokenLogprobs
from tidegate_engine.server.answers import (
    ChatLogprobs,
    PromptLogprob,
    PromptLogprobs,
    TextLogprobs,
    TokenLogprob,
    TopLogprob,
)
from tidegate_engine.server.stream import PlacedToken

LOWEST = -9999.0  # JSON has no infinity

Spell = Callable[[int], bytes]


def chat_logprobs(tokens: Sequence[PlacedToken], spell: Spell) -> ChatLogprobs:
    return ChatLogprobs(content=tuple(_chat_token(token.logprobs, spell) for token in tokens), refusal=None)


def _chat_token(token: TokenLogprobs, spell: Spell) -> TokenLogprob:
    own = _top(token.token_id, token.logprob, spell)
    top = tuple(_top(token_id, logprob, spell) for token_id, logprob in token.top)
    return TokenLogprob(token=own.token, logprob=own.logprob, bytes=own.bytes, top_logprobs=top)


def _top(token_id: int, logprob: float, spell: Spell) -> TopLogprob:
    spelt = spell(token_id)
    return TopLogprob(token=_text(spelt), logprob=finite(logprob), bytes=tuple(spelt))


def text_logprobs(tokens: Sequence[PlacedToken | None], spell: Spell, first_token: int = 0) -> TextLogprobs:
    """None stands for a prompt's first token, which nothing predicts; its id is `first_token`."""
    listed = [token.logprobs if token else None for token in tokens]
    tops = [token and _best(token, spell) for token in listed]
    return TextLogprobs(
        tokens=tuple(_text(spell(token.token_id if token else first_token)) for token in listed),
        token_logprobs=tuple(finite(token.logprob) if token else None for token in listed),
        top_logprobs=tuple(tops) if any(tops) else None,
        text_offset=tuple(token.start if token else 0 for token in tokens),
    )


def _best(token: TokenLogprobs, spell: Spell) -> dict[str, float]:
    """The best tokens and the one that was taken; of two that look alike the better one."""
    best: dict[str, float] = {}
    for token_id, logprob in (*token.top, (token.token_id, token.logprob)) if token.top else ():
        best.setdefault(_text(spell(token_id)), finite(logprob))
    return best


def placed_prompt(tokens: Sequence[TokenLogprobs | None], lengths: Sequence[int]) -> tuple[PlacedToken | None, ...]:
    """An echoed prompt's tokens where their text begins; `lengths` in characters."""
    placed: list[PlacedToken | None] = []
    start = 0
    for token, length in zip(tokens, lengths, strict=True):
        placed.append(None if token is None else PlacedToken(token, start))
        start += length
    return tuple(placed)


def prompt_logprobs(tokens: Sequence[TokenLogprobs | None], spell: Spell) -> PromptLogprobs:
    """vLLM's: by token id, the best by rank and the prompt's own token."""
    return tuple(None if token is None else _ranked(token, spell) for token in tokens)


def _ranked(token: TokenLogprobs, spell: Spell) -> dict[str, PromptLogprob]:
    ranked: dict[str, PromptLogprob] = {}
    best = [(token_id, logprob, rank) for rank, (token_id, logprob) in enumerate(token.top, 1)]
    for token_id, logprob, rank in (*best, (token.token_id, token.logprob, None)):
        entry = PromptLogprob(logprob=finite(logprob), rank=rank, decoded_token=_text(spell(token_id)))
        ranked.setdefault(str(token_id), entry)
    return ranked


def finite(logprob: float) -> float:
    return max(logprob, LOWEST)


def _text(spelt: bytes) -> str:
    return spelt.decode("utf-8", "replace")
