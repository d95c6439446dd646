"""The turns of a conversation. Clients send whole answers back, so what answers carry is accepted."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from tidegate_engine.server.schemas.base import Body, off
from tidegate_engine.server.schemas.tools import ToolCall


class TextPart(Body):
    type: Literal["text"]
    text: str


class ChatMessage(Body):
    """One turn. `tool` turns answer a call of the assistant's turn before."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[TextPart], Field(fail_fast=True)] | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True)] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    function_call: Annotated[Any, off()] = None
    audio: Annotated[Any, off()] = None

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""

    @model_validator(mode="after")
    def _calls_are_the_assistants(self) -> Self:
        if self.tool_calls and self.role != "assistant":
            raise PydanticCustomError("tool_calls", "only an assistant's message has 'tool_calls'")
        return self


Messages = Annotated[list[ChatMessage], Field(min_length=1, fail_fast=True)]
