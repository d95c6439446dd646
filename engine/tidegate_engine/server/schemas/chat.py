"""Body of POST /v1/chat/completions."""

from typing import Annotated, Any, Self

from pydantic import Field, StrictBool, StrictInt, model_validator
from pydantic_core import PydanticCustomError

from tidegate_engine.server.schemas.base import off
from tidegate_engine.server.schemas.generation import MAX_LOGPROBS, GenerationRequest
from tidegate_engine.server.schemas.messages import Messages
from tidegate_engine.server.schemas.tools import NamedTool, ToolChoice, Tools


class ChatRequest(GenerationRequest):
    """`Any`: as in GenerationRequest, but for the values a chat template takes."""

    messages: Messages
    max_completion_tokens: Annotated[StrictInt, Field(ge=1)] | None = None
    logprobs: StrictBool | None = False
    top_logprobs: Annotated[StrictInt, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: StrictBool | None = True
    # vLLM's
    add_generation_prompt: StrictBool | None = True
    continue_final_message: StrictBool | None = False
    add_special_tokens: Annotated[Any, off(False)] = None  # the template writes them
    chat_template_kwargs: dict[str, Any] | None = None
    # not served: only "off" is accepted
    functions: Annotated[Any, off([])] = None
    function_call: Annotated[Any, off("none", "auto")] = None
    modalities: Annotated[Any, off(["text"])] = None
    audio: Annotated[Any, off()] = None
    reasoning_effort: Annotated[Any, off()] = None
    verbosity: Annotated[Any, off()] = None
    prediction: Annotated[Any, off()] = None
    web_search_options: Annotated[Any, off()] = None
    chat_template: Annotated[Any, off()] = None

    @property
    def wanted_tokens(self) -> int | None:
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def offers_tools(self) -> bool:
        return bool(self.tools) and self.tool_choice != "none"

    @property
    def forced_tools(self) -> tuple[str, ...]:
        """Names of the functions of which one must be called; none: as the model likes."""
        if isinstance(self.tool_choice, NamedTool):
            return (self.tool_choice.function.name,)
        return tuple(tool.function.name for tool in self.tools or ()) if self.tool_choice == "required" else ()

    @model_validator(mode="after")
    def _tool_choice_is_offered(self) -> Self:
        names = {tool.function.name for tool in self.tools or ()}
        if len(names) < len(self.tools or ()):
            raise PydanticCustomError("tools", "every function in 'tools' needs its own name")
        if self.tool_choice == "required" and not names:
            raise PydanticCustomError("tool_choice", "'tool_choice' is 'required', but there are no 'tools'")
        if missing := [name for name in self.forced_tools if name not in names]:
            message = "'tool_choice' names a function that is not in 'tools': {name}"
            raise PydanticCustomError("tool_choice", message, {"name": missing[0]})
        if self.forced_tools and self._structures():
            raise PydanticCustomError("tool_choice", "a forced 'tool_choice' excludes a form of the answer")
        return self

    @model_validator(mode="after")
    def _fields_go_together(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise PydanticCustomError("top_logprobs", "'top_logprobs' is only allowed with 'logprobs': true")
        if self.continue_final_message and self.add_generation_prompt and self._has("add_generation_prompt"):
            raise PydanticCustomError(
                "continue_final_message", "'continue_final_message' and 'add_generation_prompt' exclude each other"
            )
        return self

    def _has(self, name: str) -> bool:
        return name in self.model_fields_set
