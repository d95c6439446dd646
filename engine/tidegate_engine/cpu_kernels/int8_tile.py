"""The inner loop of products with int8 weights: a few rows of activations times 16 outputs, written in LLVM's terms.

    weights      [outputs / 8, columns / 2, 8, 2] int8: 16 bytes are two columns of eight outputs
    activations  [rows, columns] int16: two columns are repeated eight times
    vpmaddwd     eight sums of two products in 32 bits, which never overflow: int8_product.most_of_activations

A loop over columns loads each weight once and keeps all sums in registers; scales and bias are applied to vectors of
outputs, so nothing is ever added across a vector.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from tidegate_engine.cpu_kernels.memory import FLOAT, INT8, INT16, INT32
from tidegate_engine.cpu_kernels.vectors import (
    FLOATS,
    INTEGERS,
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
UNROLLED = 2  # pairs of columns
COLUMNS = 2 * UNROLLED  # what columns are padded to a multiple of

_BYTES, _WORDS = ir.VectorType(INT8, 2 * LANES), ir.VectorType(INT16, 2 * LANES)


def tile(num_rows: int) -> Any:
    """A function of addresses and bytes from one row, or block of outputs, to the next:

    (weights, weight_stride, activations, row_stride, pairs, output_scales, row_scales, biases, result, result_stride,
    wanted, wanted_step): from `wanted` on so many bytes a pair are fetched into the cache meanwhile.
    """

    @intrinsic
    def multiply(
        typing_context, weights, weight_stride, rows, row_stride, pairs, scales, row_scales, biases, to, step,
        wanted, wanted_step,
    ):  # fmt: skip
        def generate(context, builder, signature, arguments):
            sums = _sums(builder, num_rows, *arguments[:5], *arguments[10:])
            _finish(builder, num_rows, sums, *arguments[5:10])
            return context.get_dummy_value()

        return types.void(*[types.int64] * 12), generate

    return multiply


def _sums(
    builder: ir.IRBuilder,
    num_rows: int,
    weights: Any,
    weight_stride: Any,
    rows: Any,
    row_stride: Any,
    pairs: Any,
    wanted: Any,
    wanted_step: Any,
) -> Values:
    """The loop over pairs of columns; a row's vectors side by side."""
    blocks = rows_from(builder, weights, weight_stride, VECTORS)
    starts = rows_from(builder, rows, row_stride, num_rows)

    def add_columns(pair: Any, sums: Values) -> Values:
        fetch(builder, builder.add(wanted, builder.mul(pair, wanted_step)))
        for number in range(UNROLLED):
            place = builder.add(pair, int64(number))
            columns = [_weights(builder, block, place) for block in blocks]
            pairs = [_activations(builder, start, place) for start in starts]
            products = [_multiplied(builder, two, column) for two in pairs for column in columns]
            sums = [builder.add(total, product) for total, product in zip(sums, products, strict=True)]
        return sums

    return looped(builder, pairs, UNROLLED, [ir.Constant(INTEGERS, None)] * (num_rows * VECTORS), add_columns)


def _finish(
    builder: ir.IRBuilder, num_rows: int, sums: Values, scales: Any, row_scales: Any, biases: Any, to: Any, step: Any
) -> None:
    """Results are sum * (scale of the output * scale of the row) + bias."""
    starts = rows_from(builder, to, step, num_rows)
    for vector in range(VECTORS):
        place = int64(vector * LANES * 4)
        output_scales = builder.load(pointer(builder, scales, place, FLOATS), align=4)
        bias = builder.load(pointer(builder, biases, place, FLOATS), align=4)
        for row, start in enumerate(starts):
            row_scale = builder.load(pointer(builder, row_scales, int64(4 * row), FLOAT), align=4)
            scale = builder.fmul(output_scales, repeated(builder, row_scale, FLOATS))
            total = builder.sitofp(sums[row * VECTORS + vector], FLOATS)
            result = builder.fadd(builder.fmul(total, scale), bias)
            builder.store(result, pointer(builder, start, place, FLOATS), align=4)


def _weights(builder: ir.IRBuilder, block: Any, pair: Any) -> Any:
    packed = builder.load(pointer(builder, block, builder.mul(pair, int64(2 * LANES)), _BYTES), align=1)
    return builder.sext(packed, _WORDS)


def _activations(builder: ir.IRBuilder, start: Any, pair: Any) -> Any:
    two = builder.load(pointer(builder, start, builder.mul(pair, int64(4)), INT32), align=4)
    return builder.bitcast(repeated(builder, two, INTEGERS), _WORDS)


def _multiplied(builder: ir.IRBuilder, two: Any, column: Any) -> Any:
    name, module = "llvm.x86.avx2.pmadd.wd", builder.module
    kind = ir.FunctionType(INTEGERS, [_WORDS, _WORDS])
    return builder.call(module.globals.get(name) or ir.Function(module, kind, name), [two, column])
