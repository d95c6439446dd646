"""What the API answers with, as OpenAI's clients parse it. Only fields that were set are written to the wire.

So a field left out is absent, one set to None is `null`; OpenAI's streams need both.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

FinishText = Literal["stop", "length"]


class _Wire(BaseModel):
    model_config = ConfigDict(frozen=True)

    def encode(self) -> bytes:
        return self.model_dump_json(exclude_unset=True, by_alias=True).encode()


class Usage(_Wire):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int

    @classmethod
    def of(cls, num_prompt: int, num_completion: int) -> "Usage":
        return cls(prompt_tokens=num_prompt, completion_tokens=num_completion, total_tokens=num_prompt + num_completion)


class Message(_Wire):
    role: Literal["assistant"]
    content: str
    refusal: None = None


class MessageDelta(_Wire):
    role: Literal["assistant"] = "assistant"
    content: str = ""


class ChatChoice(_Wire):
    index: int
    message: Message
    logprobs: None
    finish_reason: FinishText


class ChatChunkChoice(_Wire):
    index: int
    delta: MessageDelta
    logprobs: None
    finish_reason: FinishText | None


class TextChoice(_Wire):
    index: int
    text: str
    logprobs: None
    finish_reason: FinishText | None


class ChatAnswer(_Wire):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: tuple[ChatChoice, ...]
    usage: Usage


class ChatChunk(_Wire):
    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: tuple[ChatChunkChoice, ...]
    usage: Usage | None = None


class TextAnswer(_Wire):
    """A completion, whole or one chunk of a stream: OpenAI gives both the same object name."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: tuple[TextChoice, ...]
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
