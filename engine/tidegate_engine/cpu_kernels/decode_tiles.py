"""The inner loops of attention to pages, in LLVM's terms: keys are read once for two query heads, values for four.

    scores  four keys x one or two heads    along head_dim; then each vector's lanes are added
    values  one to four heads x 16 elements along the keys; sums stay in registers

Elements of 8 or 16 bits are widened as they are loaded. head_dim is a multiple of DIM_STEP.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from tidegate_engine.cpu_kernels.memory import FLOAT, HALF, INT8
from tidegate_engine.cpu_kernels.vectors import FLOATS, LANES, Values, int64, looped, pointer, repeated, rows_from

KEYS = 4
VECTORS = 2
DIM_STEP = VECTORS * LANES
ELEMENT_BYTES = {"float32": 4, "float16": 2, "int8": 1}
_STORED = {"float32": FLOAT, "float16": HALF, "int8": INT8}
_ANY_ORDER = ("reassoc", "contract")


def scores_tile(element: str, num_heads: int) -> Any:
    """(query, keys, key_stride, head_dim, scores, head_stride): strides in bytes, scores [num_heads][KEYS] fp32."""

    @intrinsic
    def score(typing_context, query, keys, key_stride, head_dim, scores, head_stride):
        def generate(context, builder, signature, arguments):
            query, keys, key_stride, head_dim, scores, head_stride = arguments
            heads = rows_from(builder, query, builder.mul(head_dim, int64(4)), num_heads)
            starts = rows_from(builder, keys, key_stride, KEYS)

            def add_products(place: Any, sums: Values) -> Values:
                queries = [_wide(builder, "float32", head, place) for head in heads]
                elements = [_wide(builder, element, start, place) for start in starts]
                pairs = [(one, other) for one in queries for other in elements]
                return [_fma(builder, *pair, total) for pair, total in zip(pairs, sums, strict=True)]

            sums = looped(builder, head_dim, LANES, [_zeros()] * (num_heads * KEYS), add_products)
            for head, start in enumerate(rows_from(builder, scores, head_stride, num_heads)):
                for key in range(KEYS):
                    total = _sum_of_lanes(builder, sums[head * KEYS + key])
                    builder.store(total, pointer(builder, start, int64(4 * key), FLOAT))
            return context.get_dummy_value()

        return types.void(*[types.int64] * 6), generate

    return score


def values_tile(element: str, num_heads: int) -> Any:
    """(weights, weight_stride, values, value_stride, num_keys, head_dim, output): adds to output [num_heads, head_dim].

    Weights are fp32 [num_heads][num_keys]; strides in bytes.
    """

    @intrinsic
    def add_values(typing_context, weights, weight_stride, values, value_stride, num_keys, head_dim, output):
        def generate(context, builder, signature, arguments):
            weights, weight_stride, values, value_stride, num_keys, head_dim, output = arguments
            shares = rows_from(builder, weights, weight_stride, num_heads)
            outputs = rows_from(builder, output, builder.mul(head_dim, int64(4)), num_heads)

            def add_dims(dim: Any, nothing: Values) -> Values:
                places = [builder.add(dim, int64(LANES * vector)) for vector in range(VECTORS)]
                targets = [
                    pointer(builder, start, builder.mul(place, int64(4)), FLOATS)
                    for start in outputs
                    for place in places
                ]

                def add_key(key: Any, sums: Values) -> Values:
                    start = builder.add(values, builder.mul(key, value_stride))
                    elements = [_wide(builder, element, start, place) for place in places]
                    offset = builder.mul(key, int64(4))
                    wide_shares = [
                        repeated(builder, builder.load(pointer(builder, share, offset, FLOAT)), FLOATS)
                        for share in shares
                    ]
                    pairs = [(share, one) for share in wide_shares for one in elements]
                    return [_fma(builder, *pair, total) for pair, total in zip(pairs, sums, strict=True)]

                before = [builder.load(target, align=4) for target in targets]
                for total, target in zip(looped(builder, num_keys, 1, before, add_key), targets, strict=True):
                    builder.store(total, target, align=4)
                return nothing

            looped(builder, head_dim, DIM_STEP, [], add_dims)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 7), generate

    return add_values


def _wide(builder: ir.IRBuilder, element: str, start: Any, place: Any) -> Any:
    """Eight elements from `place` on, in fp32."""
    stored = ir.VectorType(_STORED[element], LANES)
    offset = builder.mul(place, int64(ELEMENT_BYTES[element]))
    loaded = builder.load(pointer(builder, start, offset, stored), align=ELEMENT_BYTES[element])
    if element == "int8":
        return builder.sitofp(loaded, FLOATS)
    return loaded if element == "float32" else builder.fpext(loaded, FLOATS)


def _fma(builder: ir.IRBuilder, one: Any, other: Any, total: Any) -> Any:
    return builder.fadd(total, builder.fmul(one, other, flags=_ANY_ORDER), flags=_ANY_ORDER)


def _sum_of_lanes(builder: ir.IRBuilder, vector: Any) -> Any:
    name, module = "llvm.vector.reduce.fadd.v8f32", builder.module
    function = module.globals.get(name) or ir.Function(module, ir.FunctionType(FLOAT, [FLOAT, FLOATS]), name)
    return builder.call(function, [ir.Constant(FLOAT, 0.0), vector], fastmath=_ANY_ORDER)


def _zeros() -> Any:
    return ir.Constant(FLOATS, None)
