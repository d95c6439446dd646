"""How the engine keeps a model in memory: one table, which sizing multiplies and the engine obeys.

The widths follow what was measured: on CPU, matrices packed as fp16 are exact enough and twice as fast as fp32; norms
are kept in fp32 because their vectors are small and the CPU computes in fp32. A float32 model stays float32, so that
its output equals the reference token for token.
"""

from dataclasses import dataclass
from enum import Enum

from tidegate_core.accelerator import Device
from tidegate_core.shape import ModelShape, WeightGroup, WeightRole

_FLOAT32_NAMES = frozenset({"f32", "fp32", "float32"})
_INT4_BITS_PER_ELEMENT = 4.25  # groups of 128 with a 16-bit scale and a 16-bit zero point


class Precision(Enum):
    """What a model computes in: decides the width of everything below."""

    BITS_16 = 2
    BITS_32 = 4


KEPT_BYTES: dict[tuple[WeightRole, Device, Precision], int] = {
    (WeightRole.EMBEDDING, Device.CPU, Precision.BITS_16): 2,
    (WeightRole.HEAD, Device.CPU, Precision.BITS_16): 2,
    (WeightRole.LINEAR, Device.CPU, Precision.BITS_16): 2,
    (WeightRole.NORM, Device.CPU, Precision.BITS_16): 4,
    (WeightRole.EMBEDDING, Device.CUDA, Precision.BITS_16): 2,
    (WeightRole.HEAD, Device.CUDA, Precision.BITS_16): 2,
    (WeightRole.LINEAR, Device.CUDA, Precision.BITS_16): 2,
    (WeightRole.NORM, Device.CUDA, Precision.BITS_16): 2,
    **{(role, device, Precision.BITS_32): 4 for role in WeightRole for device in Device},
}


@dataclass(frozen=True)
class KvWidth:
    """Bytes of one KV element, and of the scale that a quantised vector carries."""

    element_bytes: int
    scale_bytes: int = 0

    def bytes_per_vector(self, head_dim: int) -> int:
        """One head's key, or its value, at one position."""
        return head_dim * self.element_bytes + self.scale_bytes


KV_INT8 = KvWidth(element_bytes=1, scale_bytes=2)  # an fp16 scale per token and head


@dataclass(frozen=True)
class Storage:
    """How a model is kept: as it is, or quantised, which sizing tries as remedies."""

    precision: Precision
    kv_width: KvWidth
    are_weights_4bit: bool = False

    def weight_bytes(self, group: WeightGroup, device: Device) -> int:
        """What a weight group takes, whatever its dtype in the checkpoint."""
        if self.are_weights_4bit and group.role is WeightRole.LINEAR:
            return int(group.num_elements * _INT4_BITS_PER_ELEMENT / 8)
        return group.num_elements * KEPT_BYTES[group.role, device, self.precision]


def storage_of(shape: ModelShape) -> Storage:
    """How the engine keeps this model unless told otherwise."""
    precision = Precision.BITS_32 if shape.dtype.lower() in _FLOAT32_NAMES else Precision.BITS_16
    return Storage(precision, KvWidth(precision.value))
