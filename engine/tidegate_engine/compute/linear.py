"""Matrix products with weights, in the way that was measured to be fastest on this machine.

On CPU the order of operands and the packing of weights matter more than anything else in the engine: from memory,
packed fp16 is 2 to 6 times faster than plain fp32. Two rules keep results independent of speed:

    float32 checkpoint   computed exactly in fp32; only the order of the operands is chosen, per shape and rows
    16-bit or GGUF       fp16 weights, fp32 activations: cpu_kernels/half_product.py, else packed for FBGEMM, else plain
    any, if asked for    int8 weights, activations in integers: cpu_kernels/int8_product.py, else int8.py

On CUDA the library chooses. What is kept per weight is tidegate_core.storage's table, whatever is chosen here.
"""

from collections.abc import Callable
from enum import Enum
from typing import Any, Protocol

import torch
import torch.nn.functional as F

from tidegate_engine.compute.matrix import Matrix, kept_whole

WIDENED_ELEMENTS = 1 << 22  # 16 MiB in fp32: stays in the cache until it is multiplied


class Linear(Protocol):
    """y = x W^T + b: [rows, in] -> [rows, out]."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...


class Order(Enum):
    """Exact ways to multiply: same sums, other kernels."""

    ROWS_FIRST = "x @ w.T"
    WEIGHT_FIRST = "(w @ x.T).T"


class PlainLinear:
    """Weights in the activations' dtype; `order_for` chooses by the number of rows."""

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None, order_for: Callable[[int], Order] | None = None
    ) -> None:
        self.weight = weight
        self.bias = bias
        self._order_for = order_for or (lambda _: Order.ROWS_FIRST)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return multiply(x, self.weight, self.bias, self._order_for(x.shape[0]))


def multiply(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, order: Order) -> torch.Tensor:
    """The product in one of the exact orders."""
    if order is Order.ROWS_FIRST:
        return F.linear(x, weight, bias)
    product = (weight @ x.T).T.contiguous()
    return product if bias is None else product.add_(bias)


class PackedLinear:
    """fp16 weights packed for FBGEMM, fp32 activations, sums and result."""

    def __init__(self, matrix: Matrix, bias: torch.Tensor | None) -> None:
        """Raises RuntimeError where this build of torch or this CPU has no such kernel."""
        self._parts = matrix.map_parts(lambda rows, part: _pack(rows, None if bias is None else bias[part]))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        multiply_packed = torch.ops.quantized.linear_dynamic_fp16
        if len(self._parts) == 1:
            result: torch.Tensor = multiply_packed(x, self._parts[0])
            return result
        return torch.cat([multiply_packed(x, part) for part in self._parts], -1)


def _pack(rows: torch.Tensor, bias: torch.Tensor | None) -> Any:  # an opaque object of torch's C++ side
    return torch.ops.quantized.linear_prepack_fp16(rows, bias)  # rounds to the nearest fp16


class WidenedLinear:
    """fp16 weights widened to fp32 piece by piece for each product: what is left where nothing packed serves."""

    def __init__(self, matrix: Matrix, bias: torch.Tensor | None) -> None:
        self.weight = kept_whole(matrix, torch.float16)
        self.bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        result = widened_product(self.weight, x)
        return result if self.bias is None else result.add_(self.bias)


def widened_product(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The product x W^T for weights of a narrower dtype."""
    num_rows = max(1, WIDENED_ELEMENTS // weight.shape[1])
    product = torch.empty(weight.shape[0], x.shape[0], dtype=x.dtype, device=x.device)
    for start in range(0, weight.shape[0], num_rows):
        piece = weight[start : start + num_rows]
        torch.mm(piece.to(x.dtype), x.T, out=product[start : start + num_rows])
    return product.T.contiguous()


class FixedRowsLinear:
    """Multiplies always so many rows at once, the last ones beside zeros.

    Kernels differ in the order of their sums by the number of rows, so elsewhere a row's last bits move with the batch.
    """

    def __init__(self, layer: Linear, num_rows: int) -> None:
        self._layer = layer
        self._num_rows = num_rows

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        num_missing = -x.shape[0] % self._num_rows
        full = F.pad(x, (0, 0, 0, num_missing)) if num_missing else x.contiguous()
        starts = range(0, full.shape[0], self._num_rows)
        return torch.cat([self._layer(full[start : start + self._num_rows]) for start in starts])[: x.shape[0]]
