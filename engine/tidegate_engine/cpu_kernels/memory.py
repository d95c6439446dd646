"""What numba lacks for kernels that are called with addresses: loads and stores of every width, and claiming work.

An address is an int64, so that a kernel's arguments are plain numbers (team.py). Half precision is widened as it is
loaded; LLVM turns loops over these into vector instructions.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

INT8, INT16, INT32, INT64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
HALF, FLOAT = ir.HalfType(), ir.FloatType()

Convert = Callable[[Any, Any], Any]  # (builder, value) -> value; llvmlite has no types


def _load(stored: ir.Type, result: Any, convert: Convert = lambda _, value: value) -> Any:
    @intrinsic
    def load(typing_context, address, index):
        def generate(context, builder, signature, arguments):
            first = builder.inttoptr(arguments[0], stored.as_pointer())
            return convert(builder, builder.load(builder.gep(first, [arguments[1]])))

        return result(types.int64, types.int64), generate

    return load


def _store(stored: ir.Type, given: Any, convert: Convert = lambda _, value: value) -> Any:
    @intrinsic
    def store(typing_context, address, index, value):
        def generate(context, builder, signature, arguments):
            first = builder.inttoptr(arguments[0], stored.as_pointer())
            builder.store(convert(builder, arguments[2]), builder.gep(first, [arguments[1]]))
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, given), generate

    return store


load_int32 = _load(INT32, types.int64, lambda builder, value: builder.sext(value, INT64))
load_int64 = _load(INT64, types.int64)
load_float = _load(FLOAT, types.float32)
load_half = _load(HALF, types.float32, lambda builder, value: builder.fpext(value, FLOAT))
load_int8 = _load(INT8, types.float32, lambda builder, value: builder.sitofp(value, FLOAT))
store_int8 = _store(INT8, types.int32, lambda builder, value: builder.trunc(value, INT8))
store_int16 = _store(INT16, types.int32, lambda builder, value: builder.trunc(value, INT16))
store_half = _store(HALF, types.float32, lambda builder, value: builder.fptrunc(value, HALF))
store_float = _store(FLOAT, types.float32)


@intrinsic
def as_float(typing_context, bits):
    """The float with these bits."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], FLOAT)

    return types.float32(types.int32), generate


@intrinsic
def as_bits(typing_context, value):
    """A float's bits."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], INT32)

    return types.int32(types.float32), generate


@intrinsic
def nearest(typing_context, value):
    """The nearest integer; of two, the even one, as torch.round."""

    def generate(context, builder, signature, arguments):
        rint = builder.module.declare_intrinsic("llvm.rint", [FLOAT])
        return builder.fptosi(builder.call(rint, arguments), INT32)

    return types.int32(types.float32), generate


@intrinsic
def address_of(typing_context, pointer):
    """A kernel's only argument as a number."""

    def generate(context, builder, signature, arguments):
        return builder.ptrtoint(arguments[0], INT64)

    return types.int64(types.voidptr), generate


@intrinsic
def claim(typing_context, address, amount):
    """Adds to the counter there and returns what it was: the next `amount` of work is the calling thread's.

    What other threads wrote before they added to it is there to be read.
    """

    def generate(context, builder, signature, arguments):
        counter = builder.inttoptr(arguments[0], INT64.as_pointer())
        return builder.atomic_rmw("add", counter, arguments[1], "acq_rel")

    return types.int64(types.int64, types.int64), generate


def stack(num_bytes: int) -> Any:
    """A function of nothing that gives the address of so many bytes, the calling function's own until it returns."""

    @intrinsic
    def reserve(typing_context):
        def generate(context, builder, signature, arguments):
            with builder.goto_entry_block():
                memory = builder.alloca(ir.ArrayType(INT64, -(-num_bytes // 8)))
            return builder.ptrtoint(memory, INT64)

        return types.int64(), generate

    return reserve
