"""Products with int8 weights where there is no kernel of our own (cpu_kernels/int8_product.py): exact in integers too.

    weights       w = scale of the output x [-127 .. 127]     rounded once, while the model loads
    activations   x = scale of the row x [-127 .. 127]        rounded at each product
    product       sum of integers in 32 bits, then times both scales

FBGEMM adds products of two neighbouring columns in 16 bits where the CPU has no VNNI, and cuts off what is more than
32,767. Activations are shifted to 1..255, so two weights of one sign may have 128 between them and never more: scales
are chosen for that, and nothing is ever cut off. It costs 0.1 to 0.4 of the weights' eight bits.
"""

import warnings
from typing import Any

import torch
import torch.nn.functional as F

from tidegate_engine.compute.linear import widened_product
from tidegate_engine.compute.matrix import DenseMatrix, Matrix, pieces_of

MOST = 127  # of an int8
MOST_OF_PAIR = 127.999  # before rounding; less than 128, so that no rounding makes more of it
SHIFT = 128  # activations are unsigned bytes for the kernel
TINY = 1e-30  # rows and outputs of zeros are divided by something
PROBE_ROWS, PROBE_COLUMNS = 24, 1026  # two blocks of the kernel and a rest


class Int8Linear:
    """FBGEMM's kernel with a scale per output and one for all activations, which are brought to [-1, 1] row by row."""

    def __init__(self, matrix: Matrix, bias: torch.Tensor | None) -> None:
        """Raises RuntimeError where this build of torch or this CPU has no such kernel."""
        self._parts = matrix.map_parts(lambda rows, _: _pack(rows))
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        largest = largest_of_rows(x)
        scaled = x / largest
        multiply = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32
        products = [multiply(scaled, 1 / MOST, SHIFT, part) for part in self._parts]
        product: torch.Tensor = products[0] if len(products) == 1 else torch.cat(products, -1)
        return product.mul_(largest) if self._bias is None else torch.addcmul(self._bias, product, largest)


def _pack(rows: torch.Tensor) -> Any:  # an opaque object of torch's C++ side
    scales = weight_scales(rows)
    zeros = torch.zeros(len(scales), dtype=torch.int32)
    return torch.ops.quantized.linear_prepack(torch.quantize_per_channel(rows, scales, zeros, 0, torch.qint8), None)


class WidenedInt8Linear:
    """The same numbers without the kernel: integers in fp32, widened piece by piece. Sums round, but hardly."""

    def __init__(self, matrix: Matrix, bias: torch.Tensor | None) -> None:
        self._weight = torch.empty(matrix.shape, dtype=torch.int8)
        self._scales = torch.empty(matrix.shape[0])
        self._bias = bias
        matrix.map_parts(self._round)

    def _round(self, rows: torch.Tensor, part: slice) -> None:
        scales = weight_scales(rows)
        self._scales[part] = scales
        self._weight[part] = rows.div_(scales[:, None]).round_()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        largest = largest_of_rows(x)
        rounded = (x * (MOST / largest)).round_()
        product = widened_product(self._weight, rounded).mul_(self._scales).mul_(largest / MOST)
        return product if self._bias is None else product.add_(self._bias)


def largest_of_rows(x: torch.Tensor) -> torch.Tensor:
    """[rows, 1]; never zero."""
    return x.abs().amax(-1, keepdim=True).add_(TINY)


def weight_scales(rows: torch.Tensor) -> torch.Tensor:
    """One per output, the smallest that neither overflows a byte nor lets two neighbours overflow 16 bits."""
    scales = torch.empty(rows.shape[0])
    for start, piece in pieces_of(rows, rows.shape[1]):
        scales[start : start + len(piece)] = _scales(piece)
    return scales


def _scales(rows: torch.Tensor) -> torch.Tensor:
    pairs = F.pad(rows, (0, rows.shape[1] % 2)).reshape(rows.shape[0], -1, 2)
    positive, negative = (pairs.clamp(min=0).sum(-1).amax(1), pairs.clamp(max=0).sum(-1).amin(1))
    single, pair = rows.abs().amax(1), torch.maximum(positive, -negative)
    return torch.maximum(single / MOST, pair / MOST_OF_PAIR).add_(TINY)


def multiplies_int8() -> bool:
    """Whether the kernel exists on this machine and is exact, tried on weights and activations as large as can be.

    Call it before anything is packed: torch's one warning that these tensors will go ends here. The lock file pins a
    version that has them, and without them models are served by WidenedInt8Linear.
    """
    generator = torch.Generator().manual_seed(1)
    signs = torch.randint(0, 2, (PROBE_ROWS, PROBE_COLUMNS), generator=generator) * 2.0 - 1
    signs[0], signs[1] = 1, -1
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            product = Int8Linear(DenseMatrix(signs), None)(signs)
    except (RuntimeError, AttributeError):
        return False
    return torch.allclose(product, WidenedInt8Linear(DenseMatrix(signs), None)(signs), atol=1e-3, rtol=1e-5)
