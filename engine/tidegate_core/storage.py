"""How the engine keeps a model in memory: one table, which sizing multiplies and the engine obeys.

On CPU the matrices of a 16-bit model are packed as fp16, twice as fast as fp32 and exact enough. Embedding rows are
then looked up in the mapped file, which is no private memory, so a tied embedding is held once, as the packed head.
Vectors are small and kept in fp32. A float32 model stays float32 and unpacked, so that its output equals the reference
token for token. Quantised to int8, matrices of either are packed alike, with a scale and a bias for each output.

Counted is what our own kernels keep. FBGEMM, which serves on CPUs that they cannot be compiled for, pads columns to
multiples of 512; an engine there measures more, and plans its pool with that.
"""

from dataclasses import dataclass
from enum import Enum, StrEnum

from tidegate_core.accelerator import Device
from tidegate_core.shape import ModelShape, WeightGroup, WeightRole

_FLOAT32_NAMES = frozenset({"f32", "fp32", "float32"})
_PACKED_ROLES = frozenset({WeightRole.LINEAR, WeightRole.HEAD})
_INT8_BYTES_PER_OUTPUT = 8  # scale and bias in fp32
_INT4_BITS_PER_ELEMENT = 4.25  # groups of 128 with a 16-bit scale and a 16-bit zero point


class Precision(Enum):
    """What a model computes in: decides the width of everything below."""

    BITS_16 = 2
    BITS_32 = 4


KEPT_BYTES: dict[tuple[WeightRole, Device, Precision], int] = {
    (WeightRole.EMBEDDING, Device.CPU, Precision.BITS_16): 0,
    (WeightRole.HEAD, Device.CPU, Precision.BITS_16): 2,
    (WeightRole.LINEAR, Device.CPU, Precision.BITS_16): 2,
    (WeightRole.NORM, Device.CPU, Precision.BITS_16): 4,
    (WeightRole.EMBEDDING, Device.CUDA, Precision.BITS_16): 2,
    (WeightRole.HEAD, Device.CUDA, Precision.BITS_16): 2,
    (WeightRole.LINEAR, Device.CUDA, Precision.BITS_16): 2,
    (WeightRole.NORM, Device.CUDA, Precision.BITS_16): 2,
    **{(role, device, Precision.BITS_32): 4 for role in WeightRole for device in Device},
}


class KvDtype(StrEnum):
    """What keys and values are kept in; `auto` is 16 bits, for float32 models 32."""

    AUTO = "auto"
    INT8 = "int8"
    FP8 = "fp8"  # e4m3


class Quantization(StrEnum):
    """What matrices are rounded to when a model is loaded."""

    INT8 = "int8"  # a scale per output


@dataclass(frozen=True)
class KvWidth:
    """Bytes of one KV element, and of the scale that a quantised vector carries."""

    element_bytes: int
    scale_bytes: int = 0

    def bytes_per_vector(self, head_dim: int) -> int:
        """One head's key, or its value, at one position."""
        return head_dim * self.element_bytes + self.scale_bytes


KV_8BIT = KvWidth(element_bytes=1, scale_bytes=2)  # int8 or fp8, and an fp16 scale per token and head


@dataclass(frozen=True)
class Storage:
    """How a model is kept: as it is, or quantised, which sizing tries as remedies."""

    precision: Precision
    kv_width: KvWidth
    quantization: Quantization | None = None
    are_weights_4bit: bool = False  # priced, not served

    def weight_bytes(self, group: WeightGroup, device: Device, *, is_tied: bool = False) -> int:
        """What a weight group takes, whatever its dtype in the checkpoint; a tied embedding is kept as a head."""
        if self.are_weights_4bit and group.role is WeightRole.LINEAR:
            return int(group.num_elements * _INT4_BITS_PER_ELEMENT / 8)
        role = WeightRole.HEAD if is_tied else group.role
        if self.quantization is Quantization.INT8 and device == Device.CPU and role is not WeightRole.NORM:
            return _int8_bytes(group) if role in _PACKED_ROLES else 0
        return group.num_elements * KEPT_BYTES[role, device, self.precision]


def _int8_bytes(group: WeightGroup) -> int:
    num_outputs = 0 if group.width is None else group.num_elements // group.width
    return group.num_elements + num_outputs * _INT8_BYTES_PER_OUTPUT


def storage_of(
    shape: ModelShape, kv_dtype: KvDtype = KvDtype.AUTO, quantization: Quantization | None = None
) -> Storage:
    """How the engine keeps this model, as far as it is not told otherwise."""
    precision = Precision.BITS_32 if shape.dtype.lower() in _FLOAT32_NAMES else Precision.BITS_16
    return Storage(precision, KvWidth(precision.value) if kv_dtype is KvDtype.AUTO else KV_8BIT, quantization)
