"""Runs a kernel on all threads of torch's own OpenMP team, so that no second team competes with it for the cores.

    Team.run(kernel, …) -> GOMP_parallel of the libgomp that torch loaded -> kernel(words) on each thread

`words` lie in memory that all threads share: word 0 counts claimed work, from 0; the others are what the kernel was
called with. Threads claim piece after piece until none is left, so any number of them gives the same result, and one
whose core a neighbour has taken delays the rest by a piece at most: by two where the next one is claimed early.

A step has some two hundred calls, and between two of them the core forgets Python: each line here is 0.1 ms a step.
"""

import ctypes
import struct
from array import array
from functools import lru_cache
from pathlib import Path
from threading import local

import torch

MAPS = Path("/proc/self/maps")
KEPT_BYTES = 1 << 20
_Kernel = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Team:
    """The calling thread and its helpers; as many as torch.set_num_threads said."""

    def __init__(self, libgomp: Path) -> None:
        """Raises AttributeError or OSError where that is no such library."""
        self._parallel = ctypes.CDLL(str(libgomp)).GOMP_parallel
        self._parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        self._parallel.restype = None
        self._own = local()

    def run(self, kernel: int, *words: int, is_alone: bool = False) -> None:
        """`kernel` is the address of a compiled one. Returns when all work is done; holds no interpreter lock.

        `is_alone`: so little work that the calling thread is through with it before others would have begun.
        """
        shared = array("q", (0, *words))
        address, _ = shared.buffer_info()
        if is_alone:
            _Kernel(kernel)(address)
        else:
            self._parallel(kernel, address, torch.get_num_threads(), 0)

    def scratch(self, num_bytes: int) -> torch.Tensor:
        """Memory for the next kernel of the calling thread. A little is kept for all of them: it stays in the cache."""
        if num_bytes > KEPT_BYTES:
            return torch.empty(num_bytes, dtype=torch.uint8)
        kept: torch.Tensor | None = getattr(self._own, "scratch", None)
        if kept is None:
            kept = self._own.scratch = torch.empty(KEPT_BYTES, dtype=torch.uint8)
        return kept


def loaded_libgomp(maps: Path = MAPS) -> Path | None:
    """Torch's, once torch is imported; None where its threads come from elsewhere."""
    try:
        mapped = {line.split()[-1] for line in maps.read_text().splitlines() if "libgomp" in line}
    except OSError:
        return None
    return Path(mapped.pop()) if len(mapped) == 1 else None


@lru_cache
def float_bits(value: float) -> int:
    """A word whose first half a kernel reads as fp32: load_float(shared, 2 * word)."""
    bits: int = struct.unpack("i", struct.pack("f", value))[0]
    return bits
