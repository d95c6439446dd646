"""Is it over? Resyncs of a settled pool must write nothing: no resourceVersion of anything it owns may move.

Asked at the end of every scenario on a real API server, by tests with nodes and without.
"""

from collections.abc import Callable

from e2e.installation.polling import wait_for

NUM_RESYNCS = 4  # of each pool, that must write nothing
NUM_LOOKS = 4
RESYNC_SECONDS = 60.0
Versions = dict[str, str]  # "Kind/name" -> resourceVersion


def moved_in_resyncs(
    versions: Callable[[], Versions], num_reconciles: Callable[[], float], *, num_pools: int
) -> set[str]:
    """Names of what moves, appears or goes although the operator only looks at its `num_pools` again; empty is right.

    The cluster's own controllers may still be writing, so a look that sees a change is repeated; an operator that
    writes at every resync is seen each time.
    """
    moved: set[str] = set()
    for _ in range(NUM_LOOKS):
        before = versions()
        _wait_for_resyncs(num_reconciles, NUM_RESYNCS * num_pools)
        after = versions()
        moved = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
        if not moved:
            break
    return moved


def _wait_for_resyncs(num_reconciles: Callable[[], float], number: int) -> None:
    enough = num_reconciles() + number
    wait_for("forced resyncs", lambda: num_reconciles() >= enough, RESYNC_SECONDS)
