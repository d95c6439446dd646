"""Runs a kernel on all threads of torch's own OpenMP team, so that no second team competes with it for the cores.

    Team.run(kernel, …) -> GOMP_parallel of the libgomp that torch loaded -> kernel(words) on each thread

`words` lie in memory that all threads share: word 0 counts claimed work, from 0; the others are what the kernel was
called with. Threads claim piece after piece until none is left, so any number of them gives the same result, and one
whose core a neighbour has taken delays the rest by a piece at most.
"""

import ctypes
import struct
from pathlib import Path

import torch

MAPS = Path("/proc/self/maps")


class Team:
    """The calling thread and its helpers; as many as torch.set_num_threads said."""

    def __init__(self, libgomp: Path) -> None:
        """Raises AttributeError or OSError where that is no such library."""
        self._parallel = ctypes.CDLL(str(libgomp)).GOMP_parallel
        self._parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        self._parallel.restype = None

    def run(self, kernel: int, *words: int, num_threads: int | None = None) -> None:
        """`kernel` is the address of a compiled one. Returns when all work is done; holds no interpreter lock."""
        shared = (ctypes.c_int64 * (1 + len(words)))(0, *words)
        self._parallel(kernel, ctypes.addressof(shared), num_threads or torch.get_num_threads(), 0)


def loaded_libgomp(maps: Path = MAPS) -> Path | None:
    """Torch's, once torch is imported; None where its threads come from elsewhere."""
    try:
        mapped = {line.split()[-1] for line in maps.read_text().splitlines() if "libgomp" in line}
    except OSError:
        return None
    return Path(mapped.pop()) if len(mapped) == 1 else None


def float_bits(value: float) -> int:
    """A word whose first half a kernel reads as fp32: load_float(shared, 2 * word)."""
    bits: int = struct.unpack("i", struct.pack("f", value))[0]
    return bits
