"""text_completion, whole and in chunks: the older API, whose choices are plain text and may begin with the prompt."""

from collections.abc import Sequence

from tidegate_engine.server.answers import TextAnswer, TextChoice, TextLogprobs, Usage
from tidegate_engine.server.choices import Piece, WholeChoice
from tidegate_engine.server.logprobs import Spell, placed_prompt, prompt_logprobs, text_logprobs
from tidegate_engine.server.parsers.parts import Content, Part
from tidegate_engine.server.rendering import AnswerHead, closing_text, event, finish_text, with_usage
from tidegate_engine.server.schemas.generation import StreamOptions
from tidegate_engine.server.stream import PlacedToken


class CompletionRenderer:
    """See the module."""

    def __init__(self, head: AnswerHead, options: StreamOptions, spell: Spell) -> None:
        self._head = head
        self._options = options
        self._spell = spell

    def opening(self, index: int) -> bytes | None:  # noqa: ARG002 - the protocol's: completions have no role
        return None

    def piece(self, index: int, piece: Piece, usage: Usage | None) -> bytes:
        choice = TextChoice(
            index=index,
            text=text_of(piece.parts),
            logprobs=text_logprobs(piece.tokens, self._spell) if self._head.has_logprobs else None,
            finish_reason=finish_text(piece.finish_reason),
        )
        return event(with_usage(self._answer((choice,)), usage, self._options).encode())

    def usage(self, usage: Usage) -> bytes:
        return event(with_usage(self._answer(()), usage, self._options).encode())

    def whole(self, choices: Sequence[WholeChoice], usage: Usage) -> bytes:
        listed = tuple(self._whole_choice(index, choice) for index, choice in enumerate(choices))
        return self._answer(listed).model_copy(update={"usage": usage}).encode()

    def _whole_choice(self, index: int, choice: WholeChoice) -> TextChoice:
        answer = TextChoice(
            index=index,
            text=text_of(choice.parts),
            logprobs=None if choice.tokens is None else self._logprobs(choice, choice.tokens),
            finish_reason=closing_text(choice.finish_reason),
        )
        if self._head.has_prompt_logprobs:
            answer = answer.model_copy(update={"prompt_logprobs": prompt_logprobs(choice.prompt_tokens, self._spell)})
        return answer

    def _logprobs(self, choice: WholeChoice, tokens: Sequence[PlacedToken]) -> TextLogprobs:
        if choice.echo is None:
            return text_logprobs(tokens, self._spell)
        lengths = [len(self._spell(token_id).decode("utf-8", "ignore")) for token_id in choice.prompt]
        of_prompt = placed_prompt(choice.prompt_tokens, lengths)
        moved = [PlacedToken(token.logprobs, token.start + len(choice.echo)) for token in tokens]
        return text_logprobs([*of_prompt, *moved], self._spell, choice.prompt[0])

    def _answer(self, choices: tuple[TextChoice, ...]) -> TextAnswer:
        head = self._head
        return TextAnswer(
            id=head.id, object="text_completion", created=head.created, model=head.model, choices=choices, **head.tier
        )


def text_of(parts: Sequence[Part]) -> str:
    return "".join(part.text for part in parts if isinstance(part, Content))
