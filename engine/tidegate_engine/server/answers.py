"""What the API answers with, as OpenAI's clients parse it. Only fields that were set are written to the wire.

So a field left out is absent, one set to None is `null`; OpenAI's streams need both.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

FinishText = Literal["stop", "length", "tool_calls"]
ServiceTier = Literal["default", "flex"]


class _Wire(BaseModel):
    model_config = ConfigDict(frozen=True)

    def encode(self) -> bytes:
        return self.model_dump_json(exclude_unset=True, by_alias=True).encode()


class PromptDetails(_Wire):
    cached_tokens: int


class CompletionDetails(_Wire):
    reasoning_tokens: int


class Usage(_Wire):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails

    @classmethod
    def of(cls, num_prompt: int, num_completion: int, *, num_cached: int = 0, num_reasoning: int = 0) -> "Usage":
        return cls(
            prompt_tokens=num_prompt,
            completion_tokens=num_completion,
            total_tokens=num_prompt + num_completion,
            prompt_tokens_details=PromptDetails(cached_tokens=num_cached),
            completion_tokens_details=CompletionDetails(reasoning_tokens=num_reasoning),
        )


class FunctionText(_Wire):
    name: str = ""
    arguments: str


class ToolCallAnswer(_Wire):
    """A call, or what a chunk adds to one: `index` tells which, `id`, `type` and the name come first and once."""

    index: int = 0
    id: str = ""
    type: Literal["function"] = "function"
    function: FunctionText


class Message(_Wire):
    """`reasoning` is vLLM's newer name of `reasoning_content`; clients read either."""

    role: Literal["assistant"]
    content: str | None
    refusal: None = None
    reasoning_content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallAnswer, ...] = ()


class MessageDelta(_Wire):
    role: Literal["assistant"] = "assistant"
    content: str = ""
    reasoning_content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallAnswer, ...] = ()


class TopLogprob(_Wire):
    token: str
    logprob: float
    bytes: tuple[int, ...]


class TokenLogprob(TopLogprob):
    top_logprobs: tuple[TopLogprob, ...]


class ChatLogprobs(_Wire):
    content: tuple[TokenLogprob, ...]
    refusal: None


class TextLogprobs(_Wire):
    """The older shape: one entry a token in each list; None for the first token of an echoed prompt."""

    tokens: tuple[str, ...]
    token_logprobs: tuple[float | None, ...]
    top_logprobs: tuple[dict[str, float] | None, ...] | None
    text_offset: tuple[int, ...]


class PromptLogprob(_Wire):
    """vLLM's. `rank` is None for a prompt's token that is not among the best that were asked for."""

    logprob: float
    rank: int | None
    decoded_token: str


PromptLogprobs = tuple[dict[str, PromptLogprob] | None, ...]


class ChatChoice(_Wire):
    index: int
    message: Message
    logprobs: ChatLogprobs | None
    finish_reason: FinishText


class ChatChunkChoice(_Wire):
    index: int
    delta: MessageDelta
    logprobs: ChatLogprobs | None
    finish_reason: FinishText | None


class TextChoice(_Wire):
    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: FinishText | None
    prompt_logprobs: PromptLogprobs | None = None


class ChatAnswer(_Wire):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: tuple[ChatChoice, ...]
    usage: Usage
    service_tier: ServiceTier = "default"
    prompt_logprobs: PromptLogprobs | None = None


class ChatChunk(_Wire):
    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: tuple[ChatChunkChoice, ...]
    service_tier: ServiceTier = "default"
    usage: Usage | None = None


class TextAnswer(_Wire):
    """A completion, whole or one chunk of a stream: OpenAI gives both the same object name."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: tuple[TextChoice, ...]
    service_tier: ServiceTier = "default"
    usage: Usage | None = None


class ModelExtra(_Wire):
    """What OpenAI's model card has no field for."""

    runner: str
    simulation: bool = Field(description="true: answers come from a step-time model and mean nothing")


class ModelCard(_Wire):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: None
    max_model_len: int
    x_tidegate: ModelExtra


class ModelList(_Wire):
    object: Literal["list"]
    data: tuple[ModelCard, ...]


class TokenizeAnswer(_Wire):
    count: int
    max_model_len: int
    tokens: list[int]


class DetokenizeAnswer(_Wire):
    prompt: str
