"""Products with 16-bit weights: fp32 activations and sums, at the speed of memory for few rows, of the FPU for many.

    claimed outputs x up to 128 rows, 16 outputs at a time
        stretch of columns     whose weights stay in the nearest cache until all rows have met them
            one to six rows    all sums in registers; meanwhile a share of the next stretch is fetched

One layout serves all numbers of rows, and a sum takes its columns in order: a row is the same to the bit in any batch
and on any thread. Must equal: tests/cpu/test_half_product.py takes the same weights in fp64.
"""

import torch
import torch.nn.functional as F
from numba import cfunc, njit

from tidegate_engine.compute.matrix import Matrix, pieces_of
from tidegate_engine.cpu_kernels.half_tile import COLUMN_BYTES, MOST_ROWS, OUTPUTS, tile
from tidegate_engine.cpu_kernels.memory import address_of, claim, load_float, load_int64, stack, store_float
from tidegate_engine.cpu_kernels.team import Team

LARGEST = 65504.0  # of fp16: what is more becomes this, not infinite
CLAIMED_BYTES = 1 << 16  # of weights: a few of them a thread even in small matrices
STRETCH_COLUMNS = 128  # of two stretches of weights and twenty rows, all stay in 32 KiB
MOST_ROWS_OF_SUMS = 128

one_row, two_rows, three_rows, four_rows, five_rows, six_rows = (tile(num_rows) for num_rows in range(1, MOST_ROWS + 1))
sums_stack = stack(4 * MOST_ROWS_OF_SUMS * OUTPUTS)


class HalfKernelLinear:
    """y = x W^T + b with fp32 activations."""

    def __init__(self, matrix: Matrix, bias: torch.Tensor | None, team: Team) -> None:
        self._num_outputs, self._num_columns = matrix.shape
        num_blocks = -(-self._num_outputs // OUTPUTS)
        self._blocks = torch.zeros((num_blocks, self._num_columns, OUTPUTS), dtype=torch.float16)
        self._bias = torch.zeros(self._num_outputs) if bias is None else bias.float().contiguous()
        self._team = team
        matrix.map_parts(self._pack)
        self._words = (
            self._num_columns,
            self._blocks.data_ptr(),
            self._bias.data_ptr(),
            self._num_outputs,
            max(1, CLAIMED_BYTES // (COLUMN_BYTES * self._num_columns)) * OUTPUTS,
        )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        x = x if x.stride(-1) == 1 else x.contiguous()
        num_rows = x.shape[0]
        product = torch.empty((num_rows, self._num_outputs))
        self._team.run(kernel.address, x.data_ptr(), 4 * x.stride(0), num_rows, product.data_ptr(), *self._words)
        return product

    def _pack(self, rows: torch.Tensor, part: slice) -> None:
        assert part.start % OUTPUTS == 0, part
        for start, piece in pieces_of(rows, self._num_columns, OUTPUTS):
            self._pack_piece(piece, (part.start + start) // OUTPUTS)

    def _pack_piece(self, rows: torch.Tensor, first: int) -> None:
        halves = rows.clamp_(-LARGEST, LARGEST).to(torch.float16)
        blocks = F.pad(halves, (0, 0, 0, -len(rows) % OUTPUTS)).view(-1, OUTPUTS, self._num_columns)
        self._blocks[first : first + len(blocks)] = blocks.transpose(1, 2)


@njit(error_model="numpy")
def _add_rows(num_rows, weights, rows, stride, columns, sums, wanted, step):
    if num_rows == 6:
        six_rows(weights, rows, stride, columns, sums, wanted, step)
    elif num_rows == 5:
        five_rows(weights, rows, stride, columns, sums, wanted, step)
    elif num_rows == 4:
        four_rows(weights, rows, stride, columns, sums, wanted, step)
    elif num_rows == 3:
        three_rows(weights, rows, stride, columns, sums, wanted, step)
    elif num_rows == 2:
        two_rows(weights, rows, stride, columns, sums, wanted, step)
    else:
        one_row(weights, rows, stride, columns, sums, wanted, step)


@njit(error_model="numpy")
def _add_stretch(weights, rows, stride, num_rows, columns, sums, wanted):
    """All rows times so many columns, in groups that differ by one row at most."""
    num_groups = (num_rows + MOST_ROWS - 1) // MOST_ROWS
    wanted_step = (COLUMN_BYTES + num_groups - 1) // num_groups
    first = 0
    for group in range(num_groups):
        size = (num_rows - first) // (num_groups - group)
        of_sums = sums + 4 * OUTPUTS * first
        _add_rows(size, weights, rows + first * stride, stride, columns, of_sums, wanted, wanted_step)
        first += size
        wanted += wanted_step * columns


@njit(error_model="numpy")
def _multiply_block(rows, stride, num_rows, num_columns, block, following, biases, product, num_outputs, num_wanted):
    """All rows with one block of outputs, the last of which may not exist; `following` is the next block."""
    sums = sums_stack()
    for index in range(num_rows * OUTPUTS):
        store_float(sums, index, 0.0)
    for column in range(0, num_columns, STRETCH_COLUMNS):
        columns, weights = min(STRETCH_COLUMNS, num_columns - column), block + COLUMN_BYTES * column
        wanted = weights + COLUMN_BYTES * columns if column + columns < num_columns else following
        _add_stretch(weights, rows + 4 * column, stride, num_rows, columns, sums, wanted)
    for row in range(num_rows):
        for output in range(num_wanted):
            total = load_float(sums, row * OUTPUTS + output) + load_float(biases, output)
            store_float(product, row * num_outputs + output, total)


@cfunc("void(voidptr)", nopython=True, error_model="numpy")
def kernel(words):
    """Claims a few outputs of a stretch of rows, which stays in the cache for all outputs before the next begins.

    The next ones are claimed before, so that their weights are on the way while the last of these are multiplied.
    """
    shared = address_of(words)
    rows, stride, num_rows = load_int64(shared, 1), load_int64(shared, 2), load_int64(shared, 3)
    product, num_columns, blocks = load_int64(shared, 4), load_int64(shared, 5), load_int64(shared, 6)
    biases, num_outputs, claimed = load_int64(shared, 7), load_int64(shared, 8), load_int64(shared, 9)
    num_pieces = (num_outputs + claimed - 1) // claimed
    stop = num_pieces * ((num_rows + MOST_ROWS_OF_SUMS - 1) // MOST_ROWS_OF_SUMS)
    piece = claim(shared, 1)
    while piece < stop:
        following = claim(shared, 1)
        row, first = piece // num_pieces * MOST_ROWS_OF_SUMS, piece % num_pieces * claimed
        end = min(first + claimed, num_outputs)
        for output in range(first, end, OUTPUTS):
            wanted = output + OUTPUTS if output + OUTPUTS < end else following % num_pieces * claimed
            _multiply_block(
                rows + row * stride,
                stride,
                min(MOST_ROWS_OF_SUMS, num_rows - row),
                num_columns,
                blocks + 2 * output * num_columns,
                blocks + 2 * wanted * num_columns,
                biases + 4 * output,
                product + (row * num_outputs + output) * 4,
                num_outputs,
                min(OUTPUTS, num_outputs - output),
            )
        piece = following
