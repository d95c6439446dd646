"""Requests as OpenAI's clients send them, with the extensions of vLLM that benchmarks and gateways use.

Nothing that would change an answer is silently ignored: a field that is not served is accepted only with the value that
means "off", an unknown one is refused as OpenAI refuses it. Fields without influence on the text are accepted.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StringConstraints,
    Tag,
    model_validator,
)
from pydantic_core import PydanticCustomError

MAX_STOP_STRINGS = 16
MAX_PROMPTS = 64


def _off(*neutral: object) -> AfterValidator:
    """Accepts null and the values that switch a feature off."""

    def check(value: object) -> object:
        if value is None or any(value == other and type(value) is type(other) for other in neutral):
            return value
        raise PydanticCustomError("unsupported", "this server does not support it; leave the field out")

    return AfterValidator(check)


class _Body(BaseModel):
    """Lists that may be as long as a body fail fast: spelling out millions of faults takes seconds and gigabytes."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class StreamOptions(_Body):
    include_usage: StrictBool | None = False
    continuous_usage_stats: StrictBool | None = False  # vLLM's: usage in every chunk
    include_obfuscation: StrictBool | None = False  # padding against traffic analysis; a stream without it is legal


StopString = Annotated[str, StringConstraints(min_length=1)]


class GenerationRequest(_Body):
    """What chat and completion requests share. `Any` below: the value is compared with its neutral ones, never used."""

    model: str
    stream: StrictBool | None = False
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[StrictInt, Field(ge=1)] | None = None
    temperature: Annotated[StrictFloat, Field(ge=0, le=2)] | None = None
    top_p: Annotated[StrictFloat, Field(gt=0, le=1)] | None = None
    seed: Annotated[StrictInt, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: StopString | Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS)] | None = None
    # vLLM's
    top_k: Annotated[StrictInt, Field(ge=-1)] | None = None  # 0 and -1: off
    ignore_eos: StrictBool | None = False
    stop_token_ids: Annotated[list[StrictInt], Field(max_length=MAX_STOP_STRINGS)] | None = None
    # accepted, without influence on the answer
    user: str | None = None
    metadata: dict[str, str] | None = None
    service_tier: Literal["auto", "default"] | None = None
    store: StrictBool | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    request_id: str | None = None
    # not served: only "off" is accepted
    n: Annotated[Any, _off(1)] = None
    logprobs: Annotated[Any, _off(False)] = None
    logit_bias: Annotated[Any, _off({})] = None
    presence_penalty: Annotated[Any, _off(0, 0.0)] = None
    frequency_penalty: Annotated[Any, _off(0, 0.0)] = None
    repetition_penalty: Annotated[Any, _off(1, 1.0)] = None
    min_p: Annotated[Any, _off(0, 0.0)] = None
    min_tokens: Annotated[Any, _off(0)] = None
    include_stop_str_in_output: Annotated[Any, _off(False)] = None
    skip_special_tokens: Annotated[Any, _off(True)] = None
    truncate_prompt_tokens: Annotated[Any, _off()] = None
    prompt_logprobs: Annotated[Any, _off()] = None
    guided_json: Annotated[Any, _off()] = None
    structured_outputs: Annotated[Any, _off()] = None

    @property
    def stop_strings(self) -> tuple[str, ...]:
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def wanted_tokens(self) -> int | None:
        """The client's own limit of new tokens."""
        return self.max_tokens

    @model_validator(mode="after")
    def _stream_options_need_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise PydanticCustomError("stream_options", "'stream_options' is only allowed with 'stream': true")
        return self


class TextPart(_Body):
    type: Literal["text"]
    text: str


class ChatMessage(_Body):
    """One turn. Clients send whole answers back, so an assistant's empty fields and reasoning are accepted."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], Field(fail_fast=True)] | None = None
    name: str | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: Annotated[Any, _off([])] = None
    function_call: Annotated[Any, _off()] = None
    audio: Annotated[Any, _off()] = None

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class ChatRequest(GenerationRequest):
    """Body of POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, fail_fast=True)]
    max_completion_tokens: Annotated[StrictInt, Field(ge=1)] | None = None
    top_logprobs: Annotated[Any, _off(0)] = None
    tools: Annotated[Any, _off([])] = None
    tool_choice: Annotated[Any, _off("none", "auto")] = None
    parallel_tool_calls: StrictBool | None = None
    functions: Annotated[Any, _off([])] = None
    function_call: Annotated[Any, _off("none", "auto")] = None
    response_format: Annotated[Any, _off({"type": "text"})] = None
    modalities: Annotated[Any, _off(["text"])] = None
    audio: Annotated[Any, _off()] = None
    reasoning_effort: Annotated[Any, _off()] = None
    verbosity: Annotated[Any, _off()] = None
    prediction: Annotated[Any, _off()] = None
    web_search_options: Annotated[Any, _off()] = None
    add_generation_prompt: Annotated[Any, _off(True)] = None
    continue_final_message: Annotated[Any, _off(False)] = None
    chat_template: Annotated[Any, _off()] = None
    chat_template_kwargs: Annotated[Any, _off({})] = None

    @property
    def wanted_tokens(self) -> int | None:
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens


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
    """Body of POST /v1/completions. Several prompts give several choices, indexed in the prompts' order."""

    prompt: Annotated[
        Annotated[str, Tag("one text")]
        | Annotated[TokenIds, Tag("one of tokens")]
        | Annotated[list[str], Field(min_length=1, max_length=MAX_PROMPTS), Tag("several texts")]
        | Annotated[list[TokenIds], Field(min_length=1, max_length=MAX_PROMPTS), Tag("several of tokens")],
        Discriminator(_prompt_form),
    ]
    add_special_tokens: StrictBool | None = True
    best_of: Annotated[Any, _off(1)] = None
    echo: Annotated[Any, _off(False)] = None
    suffix: Annotated[Any, _off("")] = None

    @property
    def prompts(self) -> tuple[Prompt, ...]:
        if isinstance(self.prompt, str):
            return (self.prompt,)
        # A list of integers is one prompt, a list of strings or of lists is several.
        whole = [item for item in self.prompt if not isinstance(item, int)]
        if whole:
            return tuple(whole)
        return ([item for item in self.prompt if isinstance(item, int)],)


class TokenizeRequest(_Body):
    """Body of POST /tokenize, as vLLM has it: a text, or a conversation through the chat template."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1, fail_fast=True)] | None = None
    add_special_tokens: StrictBool | None = None

    @model_validator(mode="after")
    def _one_of_prompt_and_messages(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise PydanticCustomError("one_of", "give either 'prompt' or 'messages'")
        return self


class DetokenizeRequest(_Body):
    """Body of POST /detokenize."""

    model: str | None = None
    tokens: Annotated[list[StrictInt], Field(fail_fast=True)]
