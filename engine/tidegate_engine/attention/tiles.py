"""Sizes of the Triton kernels' tiles, and how many splits a context is cut into. Pure arithmetic over shapes.

Bounds: registers (a tile's accumulator is rows x head_dim in fp32) and shared memory (99 KiB on cards such as L4 and
A10, the least of those that are served; tests/cpu/test_paged_attention_kernel.py compiles for them).
"""

from dataclasses import dataclass

from tidegate_engine.attention.base import AttentionInputs

MIN_TILE_ROWS = 16  # the smallest M of tl.dot
MAX_SPLIT_QUERIES = 8  # decodes, and drafts that are verified
LEAST_SPLIT_KEYS = 256  # shorter splits cost more to join than they save
MAX_SPLITS = 128
PROGRAMS_PER_PROCESSOR = 2


@dataclass(frozen=True)
class Tiles:
    """Rows are queries x heads of a group; keys are read so many at once."""

    rows: int
    queries: int
    keys: int
    num_warps: int
    num_stages: int


def tiles_for(group: int, head_dim: int, element_bytes: int, *, is_decode: bool) -> Tiles:
    """`is_decode`: no row has more than one query."""
    least_rows = max(MIN_TILE_ROWS, 1 << (group - 1).bit_length())
    is_wide = head_dim * element_bytes > 256
    if is_decode:
        return Tiles(least_rows, least_rows // group, 32, num_warps=4, num_stages=2 if is_wide else 3)
    rows = max(least_rows, 32 if is_wide else 64)
    return Tiles(rows, rows // group, 32 if is_wide else 64, num_warps=4, num_stages=2)


def splits_for(inputs: AttentionInputs, window: int | None, num_programs: int, num_processors: int) -> int:
    """1 where rows have many queries, or where there are programs enough or keys too few to share."""
    if inputs.max_query > MAX_SPLIT_QUERIES:
        return 1
    most_keys = inputs.max_context if window is None else min(inputs.max_context, window + inputs.max_query)
    wanted = -(-PROGRAMS_PER_PROCESSOR * num_processors // num_programs)
    return max(1, min(wanted, -(-most_keys // LEAST_SPLIT_KEYS), MAX_SPLITS))
