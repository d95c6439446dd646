"""A model as sizing sees it: layers that keep keys and values, and weights summed by role and tensor-parallel rule.

`tidegate_checkpoint` makes one from a checkpoint's headers, the inspection Job hands it to the operator as a
termination message (so its JSON stays below 4 KB whatever the model), and `tidegate_core.sizing` turns it into bytes.
pydantic is imported only for the JSON, so that `tidegate plan` on a local model starts at once.
"""

from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, ClassVar, Self

from tidegate_core.errors import UnsupportedShape

if TYPE_CHECKING:
    from pydantic import ConfigDict, TypeAdapter


def _camel(name: str) -> str:
    head, *tail = name.split("_")
    return head + "".join(word.capitalize() for word in tail)


_CAMEL: "ConfigDict" = {"alias_generator": _camel, "validate_by_name": True}
MAX_JSON_BYTES = 4096  # what the kubelet keeps of a termination message
MOST_IN_A_DIMENSION = 2**32
MOST_VALUES_OF_A_TOKEN = 2**40  # keys or values over all layers of a group
MOST_IN_ALL = 2**53  # parameters or bytes: exact in every JSON reader, and no status holds more than 64 bits
MAX_ARCHITECTURE_CHARACTERS, MAX_DTYPE_CHARACTERS = 128, 32  # as in a pool's status


class LayerKind(StrEnum):
    """How a layer's keys and values grow with the sequence."""

    FULL = "full"  # every position is kept
    WINDOW = "window"  # only the last `window` positions are looked at
    MLA = "mla"  # one compressed latent a position, shared by all heads


class WeightRole(StrEnum):
    """What a weight is for: decides how the engine keeps it in memory."""

    EMBEDDING = "embedding"  # rows are looked up
    HEAD = "head"  # hidden state to logits; absent where it is the embedding itself
    LINEAR = "linear"  # matrices of attention and feed-forward layers
    NORM = "norm"  # vectors: norms and biases


class TpRule(StrEnum):
    """What tensor parallelism does to a weight."""

    SPLIT = "split"  # each device holds its share
    REPLICATED = "replicated"  # each device holds all of it


@dataclass(frozen=True)
class AttentionGroup:
    """Layers that keep the same amount per position. MLA: num_kv_heads is 1 and head_dim is rank + rope dimensions."""

    __pydantic_config__: ClassVar["ConfigDict"] = _CAMEL

    kind: LayerKind
    num_layers: int
    num_kv_heads: int
    head_dim: int
    window: int | None = None

    def __post_init__(self) -> None:
        _require_count(self, "num_layers", "num_kv_heads", "head_dim", most=MOST_IN_A_DIMENSION)
        if self.num_layers * self.num_kv_heads * self.head_dim > MOST_VALUES_OF_A_TOKEN:
            raise UnsupportedShape("AttentionGroup keeps more for a token than any model does")
        if self.window is not None:
            _require_count(self, "window", most=MOST_IN_A_DIMENSION)
        if (self.kind is LayerKind.WINDOW) != (self.window is not None):
            raise UnsupportedShape(f"{self.num_layers} layers of kind '{self.kind}' with window {self.window}")


@dataclass(frozen=True)
class WeightGroup:
    """All tensors with the same role, rule, checkpoint dtype and width; num_bytes is their size in the checkpoint."""

    __pydantic_config__: ClassVar["ConfigDict"] = _CAMEL

    role: WeightRole
    rule: TpRule
    dtype: str
    num_elements: int
    num_bytes: int
    width: int | None = None  # columns of each matrix, which decide about padding; vectors have none

    def __post_init__(self) -> None:
        _require_count(self, "num_elements", "num_bytes", most=MOST_IN_ALL)
        if self.width is not None:
            _require_count(self, "width", most=MOST_IN_A_DIMENSION)


@dataclass(frozen=True)
class ModelShape:
    """Everything sizing needs to know of a model. `dtype` is the one it computes in ("bf16", "f16" or "f32")."""

    __pydantic_config__: ClassVar["ConfigDict"] = _CAMEL

    architecture: str
    num_parameters: int
    dtype: str
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    num_attention_heads: int
    max_context: int
    attention: tuple[AttentionGroup, ...]
    weights: tuple[WeightGroup, ...]
    has_tied_embeddings: bool
    fingerprint: str  # changes when the model's files change

    def __post_init__(self) -> None:
        _require_count(self, "num_parameters", most=MOST_IN_ALL)
        _require_count(self, "hidden_size", "intermediate_size", "vocab_size", most=MOST_IN_A_DIMENSION)
        _require_count(self, "num_attention_heads", "max_context", most=MOST_IN_A_DIMENSION)
        if len(self.architecture) > MAX_ARCHITECTURE_CHARACTERS or len(self.dtype) > MAX_DTYPE_CHARACTERS:
            raise UnsupportedShape("ModelShape: its architecture or dtype is no name")
        if not self.attention or not self.weights:
            raise UnsupportedShape(f"{self.architecture}: a shape needs at least one attention and one weight group")

    def to_json(self) -> str:
        """One line, camelCase. Raises UnsupportedShape when groups were not merged and it would exceed 4 KB."""
        text = _adapter().dump_json(self, by_alias=True, exclude_none=True).decode()
        if len(text.encode()) > MAX_JSON_BYTES:
            raise UnsupportedShape(f"{self.architecture}: its shape takes {len(text.encode())} bytes, over 4096")
        return text

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The other direction; unknown keys are ignored, so that an older reader survives. Raises UnsupportedShape."""
        from pydantic import ValidationError

        try:
            shape = _adapter().validate_json(text)
        except ValidationError as error:
            faults = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
            raise UnsupportedShape(f"not a model shape: {faults}") from error
        assert isinstance(shape, cls)
        return shape


@cache
def _adapter() -> "TypeAdapter[ModelShape]":
    from pydantic import TypeAdapter

    return TypeAdapter(ModelShape)


def _require_count(instance: object, *names: str, most: int) -> None:
    for name in names:
        value = getattr(instance, name)
        if value < 1:
            raise UnsupportedShape(f"{type(instance).__name__}.{name} is {value}; it must be at least 1")
        if value > most:
            raise UnsupportedShape(f"{type(instance).__name__}.{name} is over {most:,}; no model has as much")
