"""Whether requests are preempted again and again although none waits: memory is short, not replicas.

    preempted, queue empty ─▶ for five minutes, no pause over two ─▶ squeezed ─▶ half an hour without ─▶ no more

Called by scaling.py with each decision; it decides nothing, an operator tells a person to size replicas anew. The long
way back is there so that what is said does not come and go with the load.
"""

from dataclasses import replace

from tidegate_core.load import FleetLoad
from tidegate_core.samples import Memory

PERSIST_SECONDS = 300.0
LONGEST_PAUSE_SECONDS = 120.0
CALM_SECONDS = 1800.0


def noticed(memory: Memory, load: FleetLoad, now: float) -> Memory:
    """The memory with what this load says."""
    since, last = memory.squeezed_since, memory.squeezed_at
    if since is not None and last is not None:
        longest = CALM_SECONDS if is_squeezed(memory) else LONGEST_PAUSE_SECONDS
        if not 0 <= now - last <= longest:
            since = last = None
    if load.increase.preemptions and load.waiting < 1:
        since, last = (now if since is None else since), now
    return replace(memory, squeezed_since=since, squeezed_at=last)


def squeezed(memory: Memory, now: float) -> Memory:
    """The memory of one that was squeezed before a restart: it has to be calm for as long as any other."""
    return replace(memory, squeezed_since=now - PERSIST_SECONDS, squeezed_at=now)


def is_squeezed(memory: Memory) -> bool:
    """Whether it has lasted long enough to be said."""
    since, last = memory.squeezed_since, memory.squeezed_at
    return since is not None and last is not None and last - since >= PERSIST_SECONDS
