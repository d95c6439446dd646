"""The judge of quiescence that ends every scenario: it must see a busy operator and bear a cluster that settles."""

from collections.abc import Callable
from itertools import chain, count, repeat

from e2e.installation.quiescence import moved_in_resyncs


def reconciles() -> Callable[[], float]:
    """An operator that has reconciled ten times more whenever it is asked."""
    numbers = count(step=10)
    return lambda: float(next(numbers))


def test_nothing_moves_in_a_settled_namespace():
    assert moved_in_resyncs(lambda: {"Service/chat": "7"}, reconciles(), num_pools=2) == set()


def test_an_operator_that_writes_at_every_resync_is_seen():
    numbers = count()
    versions = lambda: {"InferencePool/chat": str(next(numbers)), "Service/chat": "7"}  # noqa: E731 - short
    assert moved_in_resyncs(versions, reconciles(), num_pools=1) == {"InferencePool/chat"}


def test_objects_that_come_and_go_are_seen():
    numbers = count()
    assert moved_in_resyncs(lambda: {f"Event/{next(numbers)}": "1"}, reconciles(), num_pools=1)


def test_a_controller_that_still_writes_for_a_moment_is_borne():
    numbers = chain(["1", "2", "3"], repeat("3"))
    assert moved_in_resyncs(lambda: {"ReplicaSet/chat": next(numbers)}, reconciles(), num_pools=1) == set()


def test_it_waits_for_resyncs_of_every_pool():
    asked = []

    def num_reconciles() -> float:
        asked.append(len(asked) * 10)
        return float(asked[-1])

    moved_in_resyncs(dict, num_reconciles, num_pools=5)
    assert asked[-1] >= 5 * 4
