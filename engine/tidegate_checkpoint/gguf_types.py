"""GGUF's storage types: how many elements make a block of how many bytes.

Used by the reader to check that tensors lie inside the file, and by sizing to count weight bytes as they are stored.
Source: ggml's type table, https://github.com/ggml-org/ggml/blob/master/include/ggml.h (enum ggml_type).
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class TensorType:
    """`number` is the file's own code; `block_elements` values are packed into `block_bytes`."""

    number: int
    name: str
    block_elements: int
    block_bytes: int


TENSOR_TYPES = {
    kind.number: kind
    for kind in (
        TensorType(0, "f32", 1, 4),
        TensorType(1, "f16", 1, 2),
        TensorType(2, "q4_0", 32, 18),
        TensorType(3, "q4_1", 32, 20),
        TensorType(6, "q5_0", 32, 22),
        TensorType(7, "q5_1", 32, 24),
        TensorType(8, "q8_0", 32, 34),
        TensorType(10, "q2_k", 256, 84),
        TensorType(11, "q3_k", 256, 110),
        TensorType(12, "q4_k", 256, 144),
        TensorType(13, "q5_k", 256, 176),
        TensorType(14, "q6_k", 256, 210),
        TensorType(16, "iq2_xxs", 256, 66),
        TensorType(17, "iq2_xs", 256, 74),
        TensorType(18, "iq3_xxs", 256, 98),
        TensorType(19, "iq1_s", 256, 50),
        TensorType(20, "iq4_nl", 32, 18),
        TensorType(21, "iq3_s", 256, 110),
        TensorType(22, "iq2_s", 256, 82),
        TensorType(23, "iq4_xs", 256, 136),
        TensorType(28, "f64", 1, 8),
        TensorType(29, "iq1_m", 256, 56),
        TensorType(30, "bf16", 1, 2),
        TensorType(34, "tq1_0", 256, 54),
        TensorType(35, "tq2_0", 256, 66),
        TensorType(39, "mxfp4", 32, 17),
    )
}
