"""Functions a model may call, which of them it must call, and calls it made before, as they come in chat requests."""

from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool, StringConstraints

from tidegate_engine.server.schemas.base import Body

MAX_TOOLS = 128
FunctionName = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9_.-]+$")]


class FunctionDefinition(Body):
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None  # Any: JSON Schema
    strict: StrictBool | None = None


class Tool(Body):
    type: Literal["function"]
    function: FunctionDefinition


Tools = Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)]


class ChosenFunction(Body):
    name: FunctionName


class NamedTool(Body):
    type: Literal["function"]
    function: ChosenFunction


ToolChoice = Literal["none", "auto", "required"] | NamedTool


class CalledFunction(Body):
    name: str
    arguments: str = ""  # as the model wrote them


class ToolCall(Body):
    """A call of an assistant's earlier turn. `index` is what streaming clients leave in it."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None
