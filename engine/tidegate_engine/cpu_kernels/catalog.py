"""Which kernels this process has. Each is compiled when first asked for, in a second, and tried before it is used.

None where numba is not installed, the CPU lacks the instructions, torch's threads are not libgomp's, or a kernel's
result is wrong: then whatever it is the faster form of serves.
"""

import logging
from collections.abc import Callable, Collection
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from tidegate_core.sizing import BLOCK_SIZE
from tidegate_engine.attention.pages import KvPages
from tidegate_engine.compute.linear import Linear
from tidegate_engine.compute.matrix import DenseMatrix, Matrix
from tidegate_engine.compute.rope import Rotation, rotate
from tidegate_engine.cpu_kernels.team import Team, loaded_libgomp

if TYPE_CHECKING:
    from tidegate_engine.cpu_kernels.decode_attention import DecodeKernel
    from tidegate_engine.cpu_kernels.head_placement import HeadPlacement

INSTRUCTIONS = ("avx2", "f16c", "fma")
ELEMENTS = {torch.float32: "float32", torch.float16: "float16", torch.int8: "int8"}
PROBE_ROWS, PROBE_OUTPUTS, PROBE_COLUMNS = 7, 37, 1026  # every size of tile, and rests of blocks
PROBE_BATCHES = (1, 2, 7, 11)  # of one to six rows at a time
PROBE_CONTEXT, PROBE_DIM, PROBE_HEADS = 21, 32, 7

MakeLinear = Callable[[Matrix, torch.Tensor | None], Linear]
Gate = Callable[[torch.Tensor], torch.Tensor]
RmsNorm = Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]

log = logging.getLogger(__name__)


@cache
def team() -> Team | None:
    """The threads that kernels run on; None where there can be no kernels."""
    libgomp, has_numba = loaded_libgomp(), find_spec("numba") is not None
    lacks = why_none(libgomp, _instructions() if has_numba else None)
    if lacks is not None:
        log.warning("no kernels of our own: %s; steps take up to twice as long", lacks)
    return None if libgomp is None or lacks is not None else Team(libgomp)


def why_none(libgomp: Path | None, instructions: Collection[str] | None) -> str | None:
    """What is missing, if anything. `instructions` are the CPU's as LLVM calls them; None: there is no numba to ask."""
    if instructions is None:
        return "numba is not installed"
    if missing := [name for name in INSTRUCTIONS if name not in instructions]:
        return f"this CPU lacks {', '.join(missing)}"
    return "torch's threads are not those of one libgomp" if libgomp is None else None


def _instructions() -> Collection[str]:
    from llvmlite.binding import get_host_cpu_features

    return [name for name, is_there in get_host_cpu_features().items() if is_there]


@cache
def int8_linear() -> MakeLinear | None:
    """Makes layers with int8 weights of matrices."""
    helpers = team()
    if helpers is None:
        return None
    from tidegate_engine.cpu_kernels.int8_product import Int8KernelLinear

    def make(matrix: Matrix, bias: torch.Tensor | None) -> Int8KernelLinear:
        return Int8KernelLinear(matrix, bias, helpers)

    weight, x = _signs(PROBE_OUTPUTS, PROBE_COLUMNS), _signs(PROBE_ROWS, PROBE_COLUMNS)
    return make if _is_right("int8_product", make(DenseMatrix(weight), None)(x), x @ weight.T) else None


@cache
def half_linear() -> MakeLinear | None:
    """Makes layers with 16-bit weights of matrices."""
    helpers = team()
    if helpers is None:
        return None
    from tidegate_engine.cpu_kernels.half_product import HalfKernelLinear

    def make(matrix: Matrix, bias: torch.Tensor | None) -> HalfKernelLinear:
        return HalfKernelLinear(matrix, bias, helpers)

    weight, x = _ramp(PROBE_OUTPUTS, PROBE_COLUMNS), _ramp(max(PROBE_BATCHES), PROBE_COLUMNS)
    layer, expected = make(DenseMatrix(weight), None), x @ weight.half().float().T
    results = torch.cat([layer(x[:rows]) for rows in PROBE_BATCHES])
    return make if _is_right("half_product", results, torch.cat([expected[:rows] for rows in PROBE_BATCHES])) else None


@cache
def rms_norm() -> RmsNorm | None:
    """See layers.rms_norm."""
    helpers = team()
    if helpers is None:
        return None
    from tidegate_engine.cpu_kernels.rms_norm import RmsNormKernel

    kernel, x = RmsNormKernel(helpers), _ramp(PROBE_ROWS, PROBE_COLUMNS)
    expected = x * x.square().mean(-1, keepdim=True).rsqrt() * x[0]
    return kernel if _is_right("rms_norm", kernel(x, x[0], 0.0), expected) else None


@cache
def gated_silu() -> Gate | None:
    """See layers.gated_silu."""
    return _gate(F.silu, is_gelu=False)


@cache
def gated_gelu() -> Gate | None:
    """See layers.gated_gelu."""
    return _gate(partial(F.gelu, approximate="tanh"), is_gelu=True)


def _gate(activation: Callable[[torch.Tensor], torch.Tensor], *, is_gelu: bool) -> Gate | None:
    helpers = team()
    if helpers is None:
        return None
    from tidegate_engine.cpu_kernels.gate import GateKernel

    kernel, gate, up = GateKernel(helpers, is_gelu=is_gelu), *(_ramp(PROBE_ROWS, PROBE_COLUMNS) * 9).chunk(2, 1)
    result = kernel(torch.cat((gate, up), 1))
    return kernel if _is_right("gate", result, activation(gate) * up) else None


@cache
def head_placement(dtype: torch.dtype) -> "HeadPlacement | None":
    """For a cache of this dtype. See heads.placed."""
    helpers = team()
    if helpers is None or dtype not in ELEMENTS:
        return None
    from tidegate_engine.cpu_kernels.head_placement import HeadPlacement

    kernel, cos_sin = HeadPlacement(ELEMENTS[dtype], helpers), _ramp(4, PROBE_DIM).view(2, 2, 1, PROBE_DIM)
    heads, rotation = _ramp(2 * PROBE_HEADS, PROBE_DIM).view(2, PROBE_HEADS, PROBE_DIM) / 10, Rotation(*cos_sin)
    data, values = torch.zeros((2, 2, BLOCK_SIZE, 1, PROBE_DIM), dtype=dtype), heads[:, :1]
    pages = KvPages(data, torch.zeros(data.shape[:-1], dtype=torch.float16) if dtype is torch.int8 else None)
    queries = kernel(heads, values, rotation, torch.tensor([3, BLOCK_SIZE + 2]), pages)
    sides = pages.gathered(torch.arange(4), torch.float32).view(2, 2, BLOCK_SIZE, 1, PROBE_DIM)
    stored = sides[torch.arange(2), :, torch.tensor([3, 2])].flatten(1, 2)
    expected = torch.cat((rotate(heads, rotation), values), 1)
    return kernel if _is_right("head_placement", torch.cat((queries, stored), 1), expected) else None


@cache
def decode_attention(dtype: torch.dtype) -> "DecodeKernel | None":
    """For a cache of this dtype."""
    helpers = team()
    if helpers is None or dtype not in ELEMENTS:
        return None
    from tidegate_engine.cpu_kernels.decode_attention import DecodeKernel

    kernel = DecodeKernel(ELEMENTS[dtype], helpers)
    query, vectors = _ramp(PROBE_HEADS, PROBE_DIM), _ramp(4 * BLOCK_SIZE, PROBE_DIM) * 100
    data = vectors.to(dtype).view(2, 2, BLOCK_SIZE, 1, PROBE_DIM)
    scales = torch.ones(data.shape[:-1], dtype=torch.float16) if dtype is torch.int8 else None
    decodes, tables, result = torch.tensor([[0, 0, PROBE_CONTEXT]]).int(), torch.tensor([[1, 0]]).int(), query.clone()
    kernel(query[None], KvPages(data, scales), decodes, tables, result, scale=0.01)
    keys, values = data.flip(0).transpose(0, 1).reshape(2, -1, PROBE_DIM)[:, :PROBE_CONTEXT].float()
    expected = (query @ keys.T * 0.01).softmax(-1) @ values
    return kernel if _is_right("decode_attention", result, expected) else None


def _is_right(name: str, result: torch.Tensor, expected: torch.Tensor) -> bool:
    is_right = torch.allclose(result, expected, rtol=1e-3, atol=1e-3)
    if not is_right:
        log.warning("the kernel %s gives wrong results on this machine and is not used: steps take longer", name)
    return is_right


def _signs(num_rows: int, num_columns: int) -> torch.Tensor:
    """As large as can be, in all of both kinds of rows that overflow first, and mixed."""
    signs = torch.where(torch.arange(num_rows * num_columns) % 7 < 4, 1.0, -1.0).view(num_rows, num_columns)
    signs[0], signs[1] = 1, -1
    return signs


def _ramp(num_rows: int, num_columns: int) -> torch.Tensor:
    return torch.linspace(-1, 1, num_rows * num_columns).view(num_rows, num_columns)
