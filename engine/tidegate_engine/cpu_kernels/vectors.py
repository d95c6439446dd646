"""Vectors of eight in LLVM's terms, for the inner loops that a compiler left to itself does not write well enough."""

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from tidegate_engine.cpu_kernels.memory import FLOAT, INT8, INT32, INT64

LANES = 8
INTEGERS, FLOATS = ir.VectorType(INT32, LANES), ir.VectorType(FLOAT, LANES)
_FIRST_LANES = ir.Constant(INTEGERS, [0] * LANES)

Values = list[Any]  # llvmlite has no types


def looped(
    builder: ir.IRBuilder, stop: Any, step: int, first: Sequence[Any], body: Callable[[Any, Values], Values]
) -> Values:
    """What becomes of the values `first` after body(place, values) for place 0, step, 2 * step … below `stop`, > 0."""
    before = builder.block
    loop, after = builder.append_basic_block("loop"), builder.append_basic_block("after")
    builder.branch(loop)
    builder.position_at_end(loop)
    place = builder.phi(INT64)
    phis = [builder.phi(value.type) for value in first]
    results = body(place, list(phis))
    following = builder.add(place, int64(step))
    for phi, start, result in zip([place, *phis], [int64(0), *first], [following, *results], strict=True):
        phi.add_incoming(start, before)
        phi.add_incoming(result, builder.block)
    builder.cbranch(builder.icmp_signed("<", following, stop), loop, after)
    builder.position_at_end(after)
    return results


def pointer(builder: ir.IRBuilder, start: Any, offset: Any, kind: ir.Type) -> Any:
    """`start` is an address, `offset` in bytes."""
    return builder.inttoptr(builder.add(start, offset), kind.as_pointer())


def rows_from(builder: ir.IRBuilder, start: Any, stride: Any, num_rows: int) -> Values:
    """Addresses of so many rows, `stride` bytes apart."""
    return [builder.add(start, builder.mul(stride, int64(row))) for row in range(num_rows)]


def repeated(builder: ir.IRBuilder, value: Any, vector: ir.VectorType) -> Any:
    """In all lanes."""
    nothing = ir.Constant(vector, ir.Undefined)
    one = builder.insert_element(nothing, value, ir.Constant(INT32, 0))
    return builder.shuffle_vector(one, nothing, _FIRST_LANES)


def fetch(builder: ir.IRBuilder, address: Any) -> None:
    """Asks memory for the 64 bytes around, and waits for nothing."""
    name, byte = "llvm.prefetch.p0", INT8.as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [byte, INT32, INT32, INT32])
    function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
    builder.call(function, [builder.inttoptr(address, byte), *(ir.Constant(INT32, number) for number in (0, 3, 1))])


def int64(value: int) -> ir.Constant:
    return ir.Constant(INT64, value)
