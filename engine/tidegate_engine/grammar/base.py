"""What the engine asks of a constraint on a request's text; torch-free, so that scheduling code may hold one.

grammar/matcher.py implements it; the Request holds it, the engine advances it, the runner asks for its mask.
"""

from typing import Protocol, Self


class TokenConstraint(Protocol):
    """Which tokens may come next. It has consumed exactly the request's output tokens, also after a preemption.

    Its methods raise GrammarFailed where the grammar became too costly to follow: that ends this request and no other.
    """

    @property
    def is_finished(self) -> bool:
        """Whether the text is complete and no token may follow."""
        ...

    @property
    def failure(self) -> str | None:
        """What GrammarFailed said, once it was raised."""
        ...

    def mask(self) -> bytes:
        """One bit a token id, the lowest of each byte first; set where the token may come next.

        End tokens are set where the text may end. Asking twice gives the same answer.
        """
        ...

    def copy(self) -> Self:
        """For another choice of the same request: as it was made, if nothing was taken yet."""
        ...

    def advance(self, token_id: int) -> None:
        """Takes the token that was sampled, which is no end token."""
        ...
