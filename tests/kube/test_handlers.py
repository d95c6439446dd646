"""Watches: which objects become keys in the queue, and that no watch dies silently."""

import kopf

from tidegate_operator.handlers import build_registry, watch_settings
from tidegate_operator.kube import Connection
from tidegate_operator.resources import CHILDREN, POD, POOL
from tidegate_operator.schedule import Key


def registry() -> kopf.OperatorRegistry:
    def enqueue(_: Key) -> None:
        raise AssertionError("nothing happens here")

    def connection() -> Connection:
        raise AssertionError("nobody logs in here")

    return build_registry(connection, enqueue)


def test_a_watch_is_ended_by_the_server_before_the_client_and_never_lasts_for_ever() -> None:
    watching = watch_settings().watching
    assert watching.server_timeout is not None
    assert watching.client_timeout is not None
    assert 0 < watching.server_timeout < watching.client_timeout < 600, "a connection that died is left by the client"
    assert watch_settings().networking.request_timeout is not None


def test_pools_of_another_group_with_the_same_kind_are_not_ours() -> None:
    watched = {(selector.group, selector.any_name) for selector in registry()._watching.get_all_selectors()}
    assert watched == {(each.group, each.plural) for each in (POOL, *CHILDREN, POD)}
    assert (POOL.group, POOL.plural) == ("tidegate.dev", "inferencepools")


def test_nothing_is_registered_for_which_kopf_would_annotate_or_hold_users_objects() -> None:
    """Changing and daemon handlers store their progress on the object and put a finalizer on it; events do not."""
    ours = registry()
    assert not ours._changing.get_all_handlers()
    assert not ours._spawning.get_all_handlers()
