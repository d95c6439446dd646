"""What chat and completion requests share: how many answers, how tokens are drawn, where an answer ends."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, StrictBool, StrictFloat, StrictInt, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from tidegate_engine.server.schemas.base import Body, off
from tidegate_engine.server.schemas.structured import (
    Choices,
    ResponseFormat,
    Schema,
    Structure,
    StructuredOutputs,
    named_structures,
    structures_of_format,
)

MAX_STOP_STRINGS = 16
MAX_CHOICES = 16
MAX_LOGPROBS = 20
MAX_BIASED_TOKENS = 1024

StopString = Annotated[str, StringConstraints(min_length=1)]
Penalty = Annotated[StrictFloat, Field(ge=-2, le=2)]
Bias = Annotated[StrictFloat, Field(ge=-100, le=100)]
TokenIdText = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,9}$")]


class StreamOptions(Body):
    include_usage: StrictBool | None = False
    continuous_usage_stats: StrictBool | None = False  # vLLM's: usage in every chunk
    include_obfuscation: StrictBool | None = False  # padding against traffic analysis; a stream without it is legal


class GenerationRequest(Body):
    """`Any` below: the value is compared with its neutral ones, never used."""

    model: str
    stream: StrictBool | None = False
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[StrictInt, Field(ge=1)] | None = None
    n: Annotated[StrictInt, Field(ge=1, le=MAX_CHOICES)] | None = None
    temperature: Annotated[StrictFloat, Field(ge=0, le=2)] | None = None
    top_p: Annotated[StrictFloat, Field(gt=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: Annotated[dict[TokenIdText, Bias], Field(max_length=MAX_BIASED_TOKENS)] | None = None
    seed: Annotated[StrictInt, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: StopString | Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS)] | None = None
    service_tier: Literal["auto", "default", "flex", "priority"] | None = None
    response_format: ResponseFormat | None = None
    # vLLM's
    top_k: Annotated[StrictInt, Field(ge=-1)] | None = None  # 0 and -1: off
    min_p: Annotated[StrictFloat, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[StrictFloat, Field(ge=0.01, le=100)] | None = None  # logits stay finite
    min_tokens: Annotated[StrictInt, Field(ge=0)] | None = None
    ignore_eos: StrictBool | None = False
    stop_token_ids: Annotated[list[StrictInt], Field(max_length=MAX_STOP_STRINGS)] | None = None
    include_stop_str_in_output: StrictBool | None = False
    skip_special_tokens: StrictBool | None = True
    truncate_prompt_tokens: Annotated[StrictInt, Field(ge=-1)] | None = None  # -1: to what leaves room for the answer
    prompt_logprobs: Annotated[StrictInt, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    priority: Annotated[StrictInt, Field(ge=-(2**31), lt=2**31)] | None = None  # lower is earlier
    cache_salt: Annotated[str, StringConstraints(min_length=1, max_length=256)] | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | None = None
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: str | None = None
    # accepted, without influence on the answer
    user: str | None = None
    metadata: dict[str, str] | None = None
    store: StrictBool | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    request_id: str | None = None
    # not served: only "off" is accepted
    spaces_between_special_tokens: Annotated[Any, off(True)] = None

    @property
    def num_choices(self) -> int:
        return self.n or 1

    @property
    def stop_strings(self) -> tuple[str, ...]:
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def wanted_tokens(self) -> int | None:
        """The client's own limit of new tokens."""
        return self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        """Best tokens to report beside each sampled one; None: no log probabilities."""
        return None

    @property
    def structure(self) -> Structure | None:
        """The form the answer must have."""
        return next(iter(self._structures()), None)

    def _structures(self) -> list[Structure]:
        wanted = self.structured_outputs
        return [
            *structures_of_format(self.response_format),
            *(wanted.structures("structured_outputs") if wanted else ()),
            *named_structures(
                "guided_",
                json_=self.guided_json,
                regex=self.guided_regex,
                choice=self.guided_choice,
                text=self.guided_grammar,
            ),
        ]

    @model_validator(mode="after")
    def _fields_fit_each_other(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise PydanticCustomError("stream_options", "'stream_options' is only allowed with 'stream': true")
        if self.stream and self.prompt_logprobs is not None:
            raise PydanticCustomError("prompt_logprobs", "'prompt_logprobs' is not available with 'stream': true")
        if self.wanted_tokens is not None and (self.min_tokens or 0) > self.wanted_tokens:
            raise PydanticCustomError("min_tokens", "'min_tokens' is more than the tokens there may be at most")
        return self

    @model_validator(mode="after")
    def _one_structure(self) -> Self:
        if len(self._structures()) > 1:
            first, second, *_ = self._structures()
            message = "give one form of answer, not both '{first}' and '{second}'"
            raise PydanticCustomError("one_of", message, {"first": first.param, "second": second.param})
        return self
