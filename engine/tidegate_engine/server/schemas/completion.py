"""Body of POST /v1/completions. Several prompts give several choices, indexed in the prompts' order."""

from typing import Annotated, Any, Self

from pydantic import Discriminator, Field, StrictBool, StrictInt, Tag, model_validator
from pydantic_core import PydanticCustomError

from tidegate_engine.server.schemas.base import off
from tidegate_engine.server.schemas.generation import MAX_LOGPROBS, GenerationRequest

MAX_PROMPTS = 64

TokenIds = Annotated[list[StrictInt], Field(min_length=1, fail_fast=True)]
Prompt = str | TokenIds


def _prompt_form(prompt: object) -> str:
    """Told by the first item, so that a fault is looked for, and named, in what the client meant."""
    match prompt:
        case [str(), *_]:
            return "several texts"
        case [list(), *_]:
            return "several of tokens"
        case [*_]:
            return "one of tokens"
        case _:
            return "one text"


class CompletionRequest(GenerationRequest):
    prompt: Annotated[
        Annotated[str, Tag("one text")]
        | Annotated[TokenIds, Tag("one of tokens")]
        | Annotated[list[str], Field(min_length=1, max_length=MAX_PROMPTS), Tag("several texts")]
        | Annotated[list[TokenIds], Field(min_length=1, max_length=MAX_PROMPTS), Tag("several of tokens")],
        Discriminator(_prompt_form),
    ]
    logprobs: Annotated[StrictInt, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    echo: StrictBool | None = False
    add_special_tokens: StrictBool | None = True  # vLLM's
    # not served: only "off" is accepted
    best_of: Annotated[Any, off(1)] = None
    suffix: Annotated[Any, off("")] = None

    @property
    def prompts(self) -> tuple[Prompt, ...]:
        if isinstance(self.prompt, str):
            return (self.prompt,)
        # A list of integers is one prompt, a list of strings or of lists is several.
        whole = [item for item in self.prompt if not isinstance(item, int)]
        if whole:
            return tuple(whole)
        return ([item for item in self.prompt if isinstance(item, int)],)

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs

    @model_validator(mode="after")
    def _not_too_many_choices(self) -> Self:
        if (num_choices := len(self.prompts) * self.num_choices) > MAX_PROMPTS:
            message = "'n' times the prompts is {number} choices, more than {most}"
            raise PydanticCustomError("n", message, {"number": num_choices, "most": MAX_PROMPTS})
        if self.echo and self.stream and self.logprobs is not None:
            raise PydanticCustomError("echo", "'echo' with 'logprobs' is not available with 'stream': true")
        return self
