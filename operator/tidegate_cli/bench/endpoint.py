"""The server under load, as OpenAI's API: which URL, which body, what a streamed answer says."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Api(StrEnum):
    """Which of OpenAI's two ways to ask."""

    COMPLETIONS = "completions"
    CHAT = "chat"


@dataclass(frozen=True)
class Endpoint:
    """`url` is the base with or without /v1. `ignores_eos`: answers are as long as asked for (vLLM's extension)."""

    url: str
    model: str
    api: Api = Api.COMPLETIONS
    api_key: str | None = field(default=None, repr=False)
    ignores_eos: bool = True

    @property
    def path(self) -> str:
        base = self.url.rstrip("/").removesuffix("/v1")
        return f"{base}/v1/chat/completions" if self.api is Api.CHAT else f"{base}/v1/completions"

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.api_key}"} if self.api_key else {}

    def body(self, prompt: str, num_output_tokens: int) -> Mapping[str, object]:
        """A greedy stream with usage at its end."""
        asked = {"messages": [{"role": "user", "content": prompt}]} if self.api is Api.CHAT else {"prompt": prompt}
        body = {
            "model": self.model,
            "max_tokens": num_output_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **asked,
        }
        return body | {"ignore_eos": True} if self.ignores_eos else body


@dataclass(frozen=True)
class Chunk:
    """What one event of a stream says."""

    has_text: bool = False
    is_closing: bool = False  # a finish reason
    num_prompt_tokens: int | None = None
    num_output_tokens: int | None = None
    num_cached_tokens: int = 0
    error: str = ""


def parse_event(data: bytes) -> Chunk:
    """Raises ValueError if it is no JSON document of a completion stream."""
    document = json.loads(data)
    if not isinstance(document, dict):
        raise TypeError(f"an event is no JSON object: {data[:80]!r}")
    if error := document.get("error"):
        return Chunk(error=str(error.get("message", error)) if isinstance(error, dict) else str(error))
    choices = document.get("choices") or [{}]
    text = choices[0].get("text") or _delta_text(choices[0].get("delta") or {})
    usage = document.get("usage") or {}
    return Chunk(
        has_text=bool(text),
        is_closing=choices[0].get("finish_reason") is not None,
        num_prompt_tokens=usage.get("prompt_tokens"),
        num_output_tokens=usage.get("completion_tokens"),
        num_cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
    )


def _delta_text(delta: Mapping[str, object]) -> object:
    return delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning") or delta.get("tool_calls")
