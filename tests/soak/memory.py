"""Is a process's memory flat? Its private pages over time, and the judgement of them."""

import statistics
from collections.abc import Sequence
from pathlib import Path

MIB = 2**20
WARM_UP_SHARE = 0.3  # caches, thread stacks and the allocator's arenas fill up at first
GROWTH_SHARE = 0.03
GROWTH_BYTES = 8 * MIB


def private_bytes(pid: int) -> int:
    """RssAnon of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("RssAnon:")]
    return int(line.split()[1]) * 1024


def growth_bytes(samples: Sequence[int]) -> int:
    """From the first fifth after the warm-up to the last fifth, medians of each."""
    steady = samples[int(len(samples) * WARM_UP_SHARE) :]
    fifth = max(1, len(steady) // 5)
    return round(statistics.median(steady[-fifth:]) - statistics.median(steady[:fifth]))


def is_flat(samples: Sequence[int]) -> bool:
    return growth_bytes(samples) <= GROWTH_BYTES + GROWTH_SHARE * samples[-1]
