"""A layer's matrix on its way from the checkpoint into memory: read part by part, so that little is there twice.

    file --rows of one part, decoded--> packed or copied into what is kept --> part let go of

At most PARTS_IN_FLIGHT parts exist at once, whatever the model and the number of cores: that is the peak while loading
which tidegate_core.memory counts. LayerLoader makes the matrices, linear.py keeps them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from threading import local
from typing import Protocol, TypeVar

import torch

from tidegate_core.memory import PART_ELEMENTS, PARTS_IN_FLIGHT
from tidegate_engine.compute.weights import Weights

GRAIN_ROWS = 64
PIECE_ELEMENTS = 1 << 15  # more, and torch starts a team of threads inside each loading thread

T = TypeVar("T")
Work = Callable[[torch.Tensor, slice], T]  # on the rows of a part and where they stand


class Matrix(Protocol):
    """[out, in]; its parts are stretches of rows, which whoever works on them may change but not keep."""

    @property
    def shape(self) -> tuple[int, int]: ...

    def map_parts(self, work: Work[T]) -> list[T]:
        """The results in the order of the rows."""
        ...


class DenseMatrix:
    """One that is in memory already."""

    def __init__(self, rows: torch.Tensor) -> None:
        self._rows = rows
        self.shape = (rows.shape[0], rows.shape[1])

    def map_parts(self, work: Work[T]) -> list[T]:
        return [work(self._rows[part].to(torch.float32, copy=True), part) for part in parts_of(self.shape)]


class StoredMatrix:
    """Stretches of rows of several matrices of a checkpoint, one below the other; all of their columns, or some."""

    def __init__(
        self, weights: Weights, rows: Mapping[str, slice], workshop: "Workshop", columns: slice | None = None
    ) -> None:
        """Raises CorruptCheckpoint for a name that is not there."""
        self._weights = weights
        self._workshop = workshop
        self._rows = rows
        self._columns = columns
        widths = [weights.shape(name)[1] for name in rows]
        num_columns = widths[0] if columns is None else columns.stop - columns.start
        self.shape = (sum(stretch.stop - stretch.start for stretch in rows.values()), num_columns)

    def map_parts(self, work: Work[T]) -> list[T]:
        return self._workshop.map(lambda part: work(self._read(part), part), parts_of(self.shape))

    def _read(self, part: slice) -> torch.Tensor:
        rows = self._workshop.bench(part.stop - part.start, self.shape[1])
        first = 0
        for name, stretch in self._rows.items():
            num_rows = stretch.stop - stretch.start
            start, stop = max(part.start, first), min(part.stop, first + num_rows)
            if start < stop:
                into = rows[start - part.start : stop - part.start]
                self._weights.read_rows(name, stretch.start + start - first, into, self._columns)
            first += num_rows
        return rows


class Workshop:
    """Threads that work on parts, each with memory for one: allocated once, since new pages cost more than decoding."""

    def __init__(self, dtype: torch.dtype) -> None:
        """`dtype` is that of the rows handed out."""
        self.num_threads = min(torch.get_num_threads(), PARTS_IN_FLIGHT)
        self._dtype = dtype
        self._own = local()
        self._threads = ThreadPoolExecutor(self.num_threads, thread_name_prefix="parts")

    def map(self, work: Callable[[slice], T], parts: Iterable[slice]) -> list[T]:
        return list(self._threads.map(work, parts))

    def bench(self, num_rows: int, num_columns: int) -> torch.Tensor:
        """The calling thread's, until it asks again."""
        needed = num_rows * num_columns
        held: torch.Tensor | None = getattr(self._own, "memory", None)
        if held is None or held.numel() < needed:
            held = self._own.memory = torch.empty(max(needed, PART_ELEMENTS), dtype=self._dtype)
        return held[:needed].view(num_rows, num_columns)

    def close(self) -> None:
        """Lets go of threads and memory."""
        self._threads.shutdown()


def kept_whole(matrix: Matrix, dtype: torch.dtype, device: torch.device | None = None) -> torch.Tensor:
    """As one tensor of its own on the device."""
    whole = torch.empty(matrix.shape, dtype=dtype, device=device)
    matrix.map_parts(lambda rows, part: whole[part].copy_(rows))
    return whole


def parts_of(shape: tuple[int, int]) -> Iterator[slice]:
    """Stretches of rows with at most PART_ELEMENTS each; cut where decoders like it, at multiples of GRAIN_ROWS."""
    num_rows = max(1, PART_ELEMENTS // shape[1])
    if num_rows > GRAIN_ROWS:
        num_rows -= num_rows % GRAIN_ROWS
    for start in range(0, shape[0], num_rows):
        yield slice(start, min(start + num_rows, shape[0]))


def pieces_of(rows: torch.Tensor, num_columns: int, grain: int = 1) -> Iterator[tuple[int, torch.Tensor]]:
    """What a thread packs at once of a part: where it begins, and a multiple of `grain` rows, but for the last ones."""
    num_rows = max(grain, PIECE_ELEMENTS // num_columns // grain * grain)
    for start in range(0, len(rows), num_rows):
        yield start, rows[start : start + num_rows]
