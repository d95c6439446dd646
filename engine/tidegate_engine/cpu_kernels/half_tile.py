"""The inner loop of products with 16-bit weights: a few rows of activations times 16 outputs, written in LLVM's terms.

    weights      [columns, 16] fp16, which vcvtph2ps widens beside the sums for nothing
    activations  fp32, one repeated eight times
    vfmadd231ps  a lane is an output, so nothing is added across a vector

Sums are read from memory and written back, so that columns can be taken stretch by stretch. A sum takes its columns in
order, whatever the number of rows: a row is the same to the bit in any batch.
"""

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from tidegate_engine.cpu_kernels.memory import FLOAT, HALF
from tidegate_engine.cpu_kernels.vectors import (
    FLOATS,
    LANES,
    Values,
    fetch,
    int64,
    looped,
    pointer,
    repeated,
    rows_from,
)

VECTORS = 2
OUTPUTS = LANES * VECTORS
COLUMN_BYTES = 2 * OUTPUTS  # of weights
MOST_ROWS = 6  # 12 sums, two vectors of weights and an activation fit 16 registers
_HALVES = ir.VectorType(HALF, LANES)


def tile(num_rows: int) -> Any:
    """Adds the products of so many columns, > 0; takes addresses, and bytes from one row of activations to the next:

    (weights, rows, row_stride, num_columns, sums, wanted, wanted_step): sums are fp32 [num_rows, 16]; meanwhile the
    cache fetches what lies at `wanted`, so many bytes a column.
    """

    @intrinsic
    def add_products(typing_context, weights, rows, row_stride, num_columns, sums, wanted, wanted_step):
        def generate(context, builder, signature, arguments):
            _add_products(builder, num_rows, *arguments)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 7), generate

    return add_products


def _add_products(
    builder: ir.IRBuilder,
    num_rows: int,
    weights: Any,
    rows: Any,
    row_stride: Any,
    num_columns: Any,
    sums: Any,
    wanted: Any,
    wanted_step: Any,
) -> None:
    starts = rows_from(builder, rows, row_stride, num_rows)
    places = [pointer(builder, sums, int64(4 * LANES * number), FLOATS) for number in range(num_rows * VECTORS)]

    def add_column(column: Any, totals: Values) -> Values:
        fetch(builder, builder.add(wanted, builder.mul(column, wanted_step)))
        vectors = _weights(builder, weights, column)
        offset = builder.mul(column, int64(4))
        values = [repeated(builder, builder.load(pointer(builder, start, offset, FLOAT)), FLOATS) for start in starts]
        pairs = [(value, vector) for value in values for vector in vectors]
        return [_fma(builder, [*pair, total]) for pair, total in zip(pairs, totals, strict=True)]

    before = [builder.load(place, align=4) for place in places]
    for total, place in zip(looped(builder, num_columns, 1, before, add_column), places, strict=True):
        builder.store(total, place, align=4)


def _weights(builder: ir.IRBuilder, weights: Any, column: Any) -> Values:
    """The vectors of one column, in fp32."""
    start = builder.add(weights, builder.mul(column, int64(COLUMN_BYTES)))
    places = [pointer(builder, start, int64(2 * LANES * vector), _HALVES) for vector in range(VECTORS)]
    return [builder.fpext(builder.load(place, align=2), FLOATS) for place in places]


def _fma(builder: ir.IRBuilder, factors_and_total: Sequence[Any]) -> Any:
    """Rounded once."""
    name, module, kind = "llvm.fma.v8f32", builder.module, ir.FunctionType(FLOATS, [FLOATS] * 3)
    return builder.call(module.globals.get(name) or ir.Function(module, kind, name), factors_and_total)
