"""Products with int8 weights in integers, at the speed at which memory gives the weights.

    weights      w = scale of the output x [-127 .. 127]     rounded once, while the model loads
    activations  x = scale of the row x [-most .. most]      rounded at each product, to 12 to 16 bits
    product      sum of integers in 32 bits, then times both scales

`most` is as large as no sum of a row can overflow 32 bits: 18,871 for 896 columns, 3,476 for 4,864. So nothing is cut
off, integers have no order of sums, and a row's result is the same to the bit in any batch and on any thread.
Must equal: tests/cpu/test_int8_kernel.py takes the same integers in fp64.
"""

import torch
import torch.nn.functional as F
from numba import cfunc, njit

from tidegate_engine.compute.matrix import Matrix, pieces_of
from tidegate_engine.cpu_kernels.int8_tile import COLUMNS, OUTPUTS, tile
from tidegate_engine.cpu_kernels.memory import (
    address_of,
    as_bits,
    as_float,
    claim,
    load_float,
    load_int64,
    nearest,
    stack,
    store_float,
    store_int16,
)
from tidegate_engine.cpu_kernels.team import Team
from tidegate_engine.cpu_kernels.vectors import LANES

MOST_OF_WEIGHTS = 127
TINY = 1e-30  # rows and outputs of zeros are divided by something
CLAIMED_BYTES = 1 << 16  # of weights: a few of them a thread even in small matrices
CACHED_BYTES = 1 << 18  # of activations, which a core keeps while it goes through the weights it claimed
MOST_CACHED_ROWS = 128
INFINITY_BITS = 0x7F800000
ABSOLUTE_BITS = 0x7FFFFFFF

one_row, two_rows, three_rows, four_rows = (tile(num_rows) for num_rows in (1, 2, 3, 4))
whole_stack = stack(4 * MOST_CACHED_ROWS * OUTPUTS)


class Int8KernelLinear:
    """y = x W^T + b with fp32 activations."""

    def __init__(self, matrix: Matrix, bias: torch.Tensor | None, team: Team) -> None:
        self._num_outputs, self._num_columns = matrix.shape
        padded = -(-self._num_outputs // OUTPUTS) * OUTPUTS
        self._columns = -(-self._num_columns // COLUMNS) * COLUMNS
        self._blocks = torch.zeros((padded // LANES, self._columns // 2, LANES, 2), dtype=torch.int8)
        self._scales, self._bias = torch.zeros(padded), torch.zeros(padded)
        if bias is not None:
            self._bias[: len(bias)] = bias
        self._team = team
        matrix.map_parts(self._pack)
        self._words = (
            self._num_columns,
            self._columns,
            most_of_activations(self._num_columns),
            self._blocks.data_ptr(),
            self._scales.data_ptr(),
            self._bias.data_ptr(),
            self._num_outputs,
            max(OUTPUTS, CLAIMED_BYTES // self._columns // OUTPUTS * OUTPUTS),
            min(MOST_CACHED_ROWS, max(4, CACHED_BYTES // (2 * self._columns) // 4 * 4)),
        )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        x = x if x.stride(-1) == 1 else x.contiguous()
        num_rows = x.shape[0]
        product = torch.empty((num_rows, self._num_outputs))
        scratch = self._team.scratch(num_rows * (2 * self._columns + 4))
        integers = scratch.data_ptr()
        row_scales = integers + num_rows * 2 * self._columns
        words = (x.data_ptr(), 4 * x.stride(0), num_rows, integers, row_scales, product.data_ptr(), *self._words)
        self._team.run(kernel.address, 0, 0, *words)
        return product

    def _pack(self, rows: torch.Tensor, part: slice) -> None:
        assert part.start % LANES == 0, part
        for start, piece in pieces_of(rows, self._columns, LANES):
            self._pack_piece(piece, part.start + start)

    def _pack_piece(self, rows: torch.Tensor, first: int) -> None:
        scales = rows.abs().amax(1).div_(MOST_OF_WEIGHTS).add_(TINY)
        self._scales[first : first + len(rows)] = scales
        integers = rows.div_(scales[:, None]).round_().to(torch.int8)
        padded = F.pad(integers, (0, self._columns - self._num_columns, 0, -len(rows) % LANES))
        blocks = padded.view(-1, LANES, self._columns // 2, 2).transpose(1, 2)
        self._blocks[first // LANES :][: len(blocks)] = blocks


def most_of_activations(num_columns: int) -> int:
    """The largest integer of a row: so many products with 127 stay within 32 bits, whatever their signs."""
    return min((1 << 15) - 1, ((1 << 31) - 1) // (MOST_OF_WEIGHTS * num_columns))


@njit(error_model="numpy")
def _round_row(x, num_columns, padded, most, integers, scale):
    """What is not finite has the largest bits of all, and makes the row's scale NaN."""
    bits = as_bits(TINY)
    for column in range(num_columns):
        bits = max(bits, as_bits(load_float(x, column)) & ABSOLUTE_BITS)
    largest = as_float(bits)
    factor = most / largest
    for column in range(num_columns):
        store_int16(integers, column, nearest(load_float(x, column) * factor))
    for column in range(num_columns, padded):
        store_int16(integers, column, 0)
    store_float(scale, 0, largest / most if bits < INFINITY_BITS else largest - largest)


@njit(error_model="numpy")
def _round_rows(shared):
    """Claims rows by word 1, and waits until word 2 says that all are there."""
    first, stride, num_rows = load_int64(shared, 3), load_int64(shared, 4), load_int64(shared, 5)
    integers, scales = load_int64(shared, 6), load_int64(shared, 7)
    num_columns, padded, most = load_int64(shared, 9), load_int64(shared, 10), load_int64(shared, 11)
    claimed, done = shared + 8, shared + 16
    row = claim(claimed, 1)
    while row < num_rows:
        _round_row(first + row * stride, num_columns, padded, most, integers + 2 * row * padded, scales + 4 * row)
        claim(done, 1)
        row = claim(claimed, 1)
    while claim(done, 0) < num_rows:
        pass


@njit(error_model="numpy")
def _multiply_block(activations, row_scales, num_rows, columns, block, scales, biases, to, step, wanted):
    """All rows with one block of outputs, four at a time; each four fetch their share of what is wanted next."""
    stride, block_stride, pairs, num_tiles = 2 * columns, LANES * columns, columns // 2, (num_rows + 3) // 4
    fetched = (2 * OUTPUTS + num_tiles - 1) // num_tiles  # bytes a pair of columns
    row = 0
    while row + 4 <= num_rows:
        rows, of_rows, result = activations + row * stride, row_scales + 4 * row, to + row * step
        four_rows(block, block_stride, rows, stride, pairs, scales, of_rows, biases, result, step, wanted, fetched)
        wanted += fetched * pairs
        row += 4
    rows, of_rows, result = activations + row * stride, row_scales + 4 * row, to + row * step
    if row + 3 == num_rows:
        three_rows(block, block_stride, rows, stride, pairs, scales, of_rows, biases, result, step, wanted, fetched)
    elif row + 2 == num_rows:
        two_rows(block, block_stride, rows, stride, pairs, scales, of_rows, biases, result, step, wanted, fetched)
    elif row + 1 == num_rows:
        one_row(block, block_stride, rows, stride, pairs, scales, of_rows, biases, result, step, wanted, fetched)


@njit(error_model="numpy")
def _multiply_outputs(
    activations, row_scales, num_rows, columns, block, scales, biases, product, num_outputs, num_wanted, wanted
):
    """The last outputs of a block may not exist, then their results go elsewhere first."""
    if num_wanted == OUTPUTS:
        step = 4 * num_outputs
        _multiply_block(activations, row_scales, num_rows, columns, block, scales, biases, product, step, wanted)
        return
    whole = whole_stack()
    _multiply_block(activations, row_scales, num_rows, columns, block, scales, biases, whole, 4 * OUTPUTS, wanted)
    for row in range(num_rows):
        for output in range(num_wanted):
            store_float(product, row * num_outputs + output, load_float(whole, row * OUTPUTS + output))


@cfunc("void(voidptr)", nopython=True, error_model="numpy")
def kernel(words):
    """Claims outputs; goes through their weights once for as many rows as stay in a core's cache.

    The next ones are claimed before, so that their weights are on the way while the last of these are multiplied.
    """
    shared = address_of(words)
    _round_rows(shared)
    num_rows, activations, row_scales = load_int64(shared, 5), load_int64(shared, 6), load_int64(shared, 7)
    product, columns, blocks = load_int64(shared, 8), load_int64(shared, 10), load_int64(shared, 12)
    scales, biases, num_outputs = load_int64(shared, 13), load_int64(shared, 14), load_int64(shared, 15)
    claimed, cached_rows = load_int64(shared, 16), load_int64(shared, 17)
    if 4 < num_rows <= cached_rows:
        claimed = OUTPUTS  # takes long enough, and threads end closer to each other
    first = claim(shared, claimed)
    while first < num_outputs:
        following = claim(shared, claimed)
        end = min(first + claimed, num_outputs)
        for row in range(0, num_rows, cached_rows):
            for output in range(first, end, OUTPUTS):
                wanted = output + OUTPUTS if output + OUTPUTS < end else following
                _multiply_outputs(
                    activations + row * columns * 2,
                    row_scales + row * 4,
                    min(cached_rows, num_rows - row),
                    columns,
                    blocks + output * columns,
                    scales + output * 4,
                    biases + output * 4,
                    product + (row * num_outputs + output) * 4,
                    num_outputs,
                    min(OUTPUTS, num_outputs - output),
                    blocks + wanted * columns,
                )
        first = following
