"""The launch contract: how an engine process is started. How it ends is termination.py.

The operator writes these arguments into pod templates, `tidegate serve` reads them, tests round-trip them; no flag is
spelled anywhere else.
"""

import argparse
import re
from collections.abc import Sequence
from enum import StrEnum
from typing import NoReturn, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic.fields import FieldInfo

from tidegate_core.accelerator import Device
from tidegate_core.errors import BadLaunch, BadQuantity
from tidegate_core.quantity import format_quantity, parse_bytes
from tidegate_core.storage import KvDtype, Quantization
from tidegate_core.telemetry import ADMIN_PORT, API_PORT

__all__ = [
    "ADMIN_PORT",
    "API_PORT",
    "MODELS_PATH",
    "AttentionKind",
    "Device",
    "EngineLaunch",
    "KvDtype",
    "Quantization",
    "ReasoningParser",
    "RunnerKind",
    "Switch",
    "ToolParser",
]

MODELS_PATH = "/models"  # where a pool's model volume is mounted, in engines and in the inspection Job alike


class RunnerKind(StrEnum):
    """What computes a step: a model, or a step-time model that stands in for one (rehearsals without a GPU)."""

    TORCH = "torch"
    SIM = "sim"


class AttentionKind(StrEnum):
    """Attention implementation; `auto` takes triton on CUDA, and on CPU a kernel for decodes beside the reference."""

    AUTO = "auto"
    TRITON = "triton"
    REFERENCE = "reference"


class ToolParser(StrEnum):
    """How a model writes tool calls; `auto` goes by its chat template."""

    AUTO = "auto"
    NONE = "none"
    HERMES = "hermes"
    LLAMA3_JSON = "llama3_json"
    MISTRAL = "mistral"
    PYTHONIC = "pythonic"


class ReasoningParser(StrEnum):
    """How a model writes reasoning; `auto` goes by its chat template. deepseek_r1 reasons without an opening mark."""

    AUTO = "auto"
    NONE = "none"
    QWEN3 = "qwen3"
    DEEPSEEK_R1 = "deepseek_r1"


class Switch(StrEnum):
    """What is on unless it is turned off: an option's default is not written, so off needs a word of its own."""

    ON = "on"
    OFF = "off"


class EngineLaunch(BaseModel):
    """Arguments of `tidegate serve`. A field's description is its help text; sizes are bytes, times seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    model: str = Field(description="model directory or GGUF file")
    device: Device = Field(default=Device.CPU, description="where the model runs")
    tensor_parallel: int = Field(
        default=1, ge=1, le=8, description="devices that the model is divided between, one process for each"
    )
    runner: RunnerKind = Field(
        default=RunnerKind.TORCH, description="torch: the model; sim: a step-time model without weights"
    )
    host: str = Field(default="0.0.0.0", description="address both ports listen on")  # noqa: S104 - a pod serves its network
    port: int = Field(default=API_PORT, ge=0, le=65535, description="OpenAI API port; 0 takes a free one")
    admin_port: int = Field(
        default=ADMIN_PORT, ge=0, le=65535, description="probes, metrics, load and drain; 0 takes a free one"
    )
    context: int | None = Field(
        default=None, ge=16, description="longest sequence in tokens; absent: the model's, shrunk to fit"
    )
    slots: int | None = Field(default=None, ge=1, description="most requests running at once; absent: computed")
    kv_memory: int | None = Field(
        default=None,
        ge=1,
        description="KV pool per device, such as 4Gi; absent: what is left of the container's or machine's memory",
    )
    kv_dtype: KvDtype = Field(
        default=KvDtype.AUTO,
        description="KV cache: auto: as wide as the model; int8: half of 16 bits, on every device; fp8: e4m3, "
        "on GPUs of compute capability 8.9 or newer",
    )
    quantization: Quantization | None = Field(
        default=None,
        description="weights, rounded while loading: int8, on CPU only; absent: 16 bits, float32 models as they are",
    )
    attention: AttentionKind = Field(default=AttentionKind.AUTO, description="attention implementation")
    prefix_cache: Switch = Field(
        default=Switch.ON,
        description="on: beginnings of prompts that were computed before are reused; off: everything is computed",
    )
    deterministic: bool = Field(
        default=False,
        description="an answer is the same to the bit whatever is computed beside it and whatever was cached; "
        "on CPU only, and slower",
    )
    max_queue: int = Field(default=64, ge=0, description="most requests waiting; more are refused with 503")
    max_queue_tokens: int | None = Field(
        default=None, ge=1, description="most prompt tokens waiting; absent: no bound of their own"
    )
    max_wait_seconds: float = Field(default=30.0, gt=0, description="longest predicted wait that is accepted")
    prompt_tokens: int = Field(default=900, ge=1, description="p90 prompt length, for slots and predictions")
    output_tokens: int = Field(default=300, ge=1, description="p90 output length, for slots and predictions")
    itl_ms: float = Field(default=100.0, gt=0, description="inter-token latency objective in milliseconds")
    served_name: tuple[str, ...] = Field(
        default=(), description="model name clients use (repeatable); absent: the file's name"
    )
    chat_template: str | None = Field(
        default=None, description="file with a Jinja chat template, for models without one"
    )
    api_keys_file: str | None = Field(
        default=None, description="file of hashed API keys, one a line, re-read on change; absent: no key is asked for"
    )
    trust_fairness_header: bool = Field(
        default=False,
        description="a proxy in front sets x-gateway-inference-fairness-id, which then names the tenant",
    )
    tool_parser: ToolParser = Field(
        default=ToolParser.AUTO,
        description="how the model writes tool calls; auto: by its chat template; none: tools are refused",
    )
    reasoning_parser: ReasoningParser = Field(
        default=ReasoningParser.AUTO,
        description="how the model writes reasoning; auto: by its chat template; none: it stays in the content",
    )
    drain_seconds: float = Field(default=120.0, ge=0, description="grace for running requests after SIGTERM")
    drain_token_sha256: tuple[str, ...] = Field(
        default=(), description="SHA-256 of a token that may call /drain (repeatable)"
    )
    threads: int | None = Field(
        default=None, ge=1, le=4096, description="CPU threads; absent: the container's CPU limit, rounded up"
    )
    sim_preemptions_per_minute: float = Field(
        default=0.0, ge=0, description="sim only: injected preemptions, for rehearsals"
    )

    @field_validator("model")
    @classmethod
    def _model_is_no_option(cls, model: str) -> str:
        if not model or model.startswith("-"):
            raise ValueError("a model is a path, which is not empty and does not begin with '-'")
        return model

    @field_validator("kv_memory", mode="before")
    @classmethod
    def _kv_memory_may_have_a_unit(cls, value: object) -> object:
        try:
            return parse_bytes(value) if isinstance(value, str) else value
        except BadQuantity as error:
            raise ValueError(str(error)) from error

    @field_validator("drain_token_sha256")
    @classmethod
    def _digests_are_digests(cls, digests: tuple[str, ...]) -> tuple[str, ...]:
        for digest in digests:
            if not re.fullmatch("[0-9a-fA-F]{64}", digest):
                raise ValueError(f"'{digest}' is not a SHA-256, which has 64 hexadecimal digits; sha256sum prints one")
        return digests

    def to_args(self) -> list[str]:
        """Arguments after `tidegate serve`, defaults left out; from_args(to_args(x)) == x."""
        options = type(self).model_fields.items()
        given = [(name, getattr(self, name)) for name, field in options if name != "model"]
        changed = [(name, value) for name, value in given if value != type(self).model_fields[name].default]
        return [self.model, *(arg for name, value in changed for arg in _spell(name, value))]

    @classmethod
    def from_args(cls, args: Sequence[str]) -> Self:
        """Raises BadLaunch with the argument's name when a value is wrong, missing or unknown."""
        return cls.from_namespace(cls.add_arguments(_RaisingParser(prog="tidegate serve")).parse_args(list(args)))

    @classmethod
    def from_namespace(cls, namespace: argparse.Namespace) -> Self:
        """From parsed arguments; absent ones take the contract's defaults. Raises BadLaunch."""
        parsed = {name: getattr(namespace, name, None) for name in cls.model_fields}
        given = {name: _unseparated(value) for name, value in parsed.items() if value is not None}
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            faults = "; ".join(_fault(fault["loc"], fault["msg"]) for fault in error.errors())
            raise BadLaunch(f"engine arguments are wrong: {faults}") from error

    @classmethod
    def add_arguments(cls, parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        """One option per field, none with a value of its own: absent ones are told from given ones."""
        parser.add_argument("model", help=cls.model_fields["model"].description)
        for name, field in cls.model_fields.items():
            if isinstance(field.default, bool):
                parser.add_argument(
                    _flag(name), dest=name, help=field.description, action="store_const", const=True, default=None
                )
            elif name != "model":
                action = "append" if isinstance(field.default, tuple) else "store"
                parser.add_argument(_flag(name), dest=name, help=field.description, action=action, metavar=_hint(field))
        return parser


class _RaisingParser(argparse.ArgumentParser):
    """argparse prints and exits; a library caller needs an exception it can show. Abbreviations are no contract."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog=prog, allow_abbrev=False, add_help=False)

    def error(self, message: str) -> NoReturn:
        raise BadLaunch(f"engine arguments are wrong: {message}")


def _unseparated(value: object) -> object:
    """Python 3.11's argparse takes the value of `--host=--` for the end of the options and leaves an empty list."""
    if isinstance(value, list):
        return [_unseparated(item) for item in value] or "--"
    return value


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _hint(field: FieldInfo) -> str:
    """What to write after a flag, for help texts."""
    if isinstance(field.default, StrEnum):
        return "|".join(type(field.default))
    kinds: dict[object, str] = {
        int: "N",
        int | None: "N",
        float: "X",
        tuple[str, ...]: "TEXT",
        str: "TEXT",
        str | None: "TEXT",
        Quantization | None: "|".join(Quantization),
    }
    return kinds[field.annotation]


def _fault(location: tuple[int | str, ...], message: str) -> str:
    name = str(location[0]) if location else "arguments"
    return f"{'model' if name == 'model' else _flag(name)}: {message.removeprefix('Value error, ')}"


def _spell(name: str, value: object) -> list[str]:
    """Joined by '=', so that a value may begin with a dash. A switch is only ever spelled to turn it on."""
    if isinstance(value, bool):
        return [_flag(name)]
    if isinstance(value, tuple):
        return [f"{_flag(name)}={item}" for item in value]
    if name == "kv_memory":
        assert isinstance(value, int)
        return [f"{_flag(name)}={format_quantity(value)}"]
    return [f"{_flag(name)}={value}"]
