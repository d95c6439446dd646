"""CPU matrix products of the engine against plain F.linear: `make bench`, or `python -m benchmarks.linear`.

Many different weights in turn, as a model's layers are, so that they come from memory and not from cache. Prints, for
shapes of small models and numbers of rows, how many times faster the engine's layer is in the same run.
"""

import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F

from tidegate_engine.compute.linear_choice import LinearChoice
from tidegate_engine.compute.matrix import DenseMatrix

SHAPES = ((4864, 896), (896, 4864), (2048, 640), (640, 2048))  # Qwen2 0.5B and Gemma 3 270M, [out, in]
ROWS = (1, 4, 8, 20, 64)
COLD_BYTES = 256 * 2**20  # of fp32 weights in turn: more than a cache holds
NUM_ROUNDS = 5


def measure(shape: tuple[int, int], rows: int) -> tuple[float, float]:
    """Median seconds of one product, by F.linear in fp32 and by the engine's layer for 16-bit weights."""
    num_weights = max(2, COLD_BYTES // (4 * shape[0] * shape[1]))
    weights = [torch.randn(shape) * 0.02 for _ in range(num_weights)]
    choice = LinearChoice(time.perf_counter)
    x = torch.randn(rows, shape[1])
    plain: list[Callable[[], object]] = [partial(F.linear, x, weight) for weight in weights]
    ours: list[Callable[[], object]] = [partial(choice.rounded(DenseMatrix(weight), None), x) for weight in weights]
    rounds = [(_seconds(plain), _seconds(ours)) for _ in range(NUM_ROUNDS)]  # in turn, so that drift hits both
    return statistics.median(a for a, _ in rounds), statistics.median(b for _, b in rounds)


def _seconds(products: list[Callable[[], object]]) -> float:
    start = time.perf_counter()
    for product in products:
        product()
    return (time.perf_counter() - start) / len(products)


def main() -> None:
    torch.set_num_threads(2)
    print("speed of the engine's 16-bit linear layers, F.linear in fp32 = 1")
    print(f"{'weight':>14}  " + "  ".join(f"{rows:>4} rows" for rows in ROWS))
    for shape in SHAPES:
        ratios = [plain / ours for plain, ours in (measure(shape, rows) for rows in ROWS)]
        print(f"{shape[0]:>7} x {shape[1]:<4}  " + "  ".join(f"{ratio:>8.1f}x" for ratio in ratios))


if __name__ == "__main__":
    main()
