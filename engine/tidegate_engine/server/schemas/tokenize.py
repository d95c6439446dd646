"""Bodies of vLLM's POST /tokenize and /detokenize."""

from typing import Annotated, Any, Self

from pydantic import Field, StrictBool, StrictInt, model_validator
from pydantic_core import PydanticCustomError

from tidegate_engine.server.schemas.base import Body
from tidegate_engine.server.schemas.messages import Messages
from tidegate_engine.server.schemas.tools import Tools


class TokenizeRequest(Body):
    """A text, or a conversation through the chat template."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    tools: Tools | None = None
    add_special_tokens: StrictBool | None = None
    add_generation_prompt: StrictBool | None = True
    continue_final_message: StrictBool | None = False
    chat_template_kwargs: dict[str, Any] | None = None  # Any: whatever the template takes

    @model_validator(mode="after")
    def _one_of_prompt_and_messages(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise PydanticCustomError("one_of", "give either 'prompt' or 'messages'")
        return self


class DetokenizeRequest(Body):
    model: str | None = None
    tokens: Annotated[list[StrictInt], Field(fail_fast=True)]
