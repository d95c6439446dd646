"""A compiled grammar that follows one request's output: TokenConstraint over the grammar library's matcher."""

from typing import Self

from llguidance import LLMatcher

from tidegate_engine.errors import GrammarFailed


class GrammarMatcher:
    """Implements TokenConstraint. Masks come from the runner's threads, tokens from the engine's, never at once."""

    def __init__(self, matcher: LLMatcher) -> None:
        """`matcher` has consumed nothing and is this object's own."""
        self._matcher = matcher
        self.failure: str | None = None

    @property
    def is_finished(self) -> bool:
        return bool(self._matcher.is_stopped())

    def copy(self) -> Self:
        """See TokenConstraint.copy."""
        return type(self)(self._matcher.deep_copy())

    def mask(self) -> bytes:
        mask = self._matcher.compute_bitmask()
        self._check()
        return mask

    def advance(self, token_id: int) -> None:
        self._matcher.consume_token(token_id)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            self.failure = f"the answer's grammar cannot be followed further: {error_of(self._matcher)}"
            raise GrammarFailed(self.failure)


def error_of(matcher: LLMatcher) -> str:
    """What is wrong, without the dump of the library's own state that may follow."""
    message: str = matcher.get_error()
    return message.partition("\n<")[0].strip()
