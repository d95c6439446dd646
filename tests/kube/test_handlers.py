"""Watches: which objects the lookout is told of, and that no watch dies silently."""

import asyncio
from typing import Any

import kopf
import pytest

from tidegate_operator.control.handlers import Watcher, build_registry, watch_settings
from tidegate_operator.kube import PAGE_SIZE, Connection
from tidegate_operator.labels import POOL_LABEL
from tidegate_operator.resources import CHILDREN, POD, POOL, Manifest, Resource


def registry() -> kopf.OperatorRegistry:
    def tell(_resource: Resource, _kind_of_event: str | None, _item: Manifest) -> None:
        raise AssertionError("nothing happens here")

    def connection() -> Connection:
        raise AssertionError("nobody logs in here")

    return build_registry(connection, tell, print)


def test_a_watch_is_ended_by_the_server_before_the_client_and_never_lasts_for_ever() -> None:
    watching = watch_settings().watching
    assert watching.server_timeout is not None
    assert watching.client_timeout is not None
    assert 0 < watching.server_timeout < watching.client_timeout < 600, "a connection that died is left by the client"
    assert watch_settings().networking.request_timeout is not None


def test_what_a_list_told_does_not_lie_in_memory_while_all_the_rest_is_told() -> None:
    settings = watch_settings()
    assert settings.watching.chunk_size == PAGE_SIZE, "a page of dicts at a time, as in our own lists"
    assert 0 < settings.queueing.idle_timeout < 1, "so long a worker keeps its object's last event; at 0 it would spin"


def test_pools_of_another_group_with_the_same_kind_are_not_ours() -> None:
    watched = {(selector.group, selector.any_name) for selector in registry()._watching.get_all_selectors()}
    assert watched == {(each.group, each.plural) for each in (POOL, *CHILDREN, POD)}
    assert (POOL.group, POOL.plural) == ("tidegate.dev", "inferencepools")


def test_nothing_is_registered_for_which_kopf_would_annotate_or_hold_users_objects() -> None:
    """Changing and daemon handlers store their progress on the object and put a finalizer on it; events do not."""
    ours = registry()
    assert not ours._changing.get_all_handlers()
    assert not ours._spawning.get_all_handlers()


def test_an_outage_of_an_hour_ends_no_watch_and_is_noticed_to_be_over_within_seconds() -> None:
    backoffs = watch_settings().networking.error_backoffs
    assert not isinstance(backoffs, int | float)
    assert sum(backoffs) > 3600
    assert max(backoffs) <= 10


def test_watches_that_never_started_are_stopped_at_once() -> None:
    def end() -> None:
        raise AssertionError("it was asked to end")

    Watcher(connection=lambda: pytest.fail("nobody logs in"), tell=print, namespaces=("x",), on_end=end).stop()


def test_an_event_is_passed_on_with_its_kind_and_the_whole_object() -> None:
    told: list[tuple[Resource, str | None, Manifest]] = []
    ours = build_registry(lambda: pytest.fail("nobody logs in"), lambda *each: told.append(each), print)
    on_pod: Any
    (on_pod,) = {handler.fn for handler in ours._watching.get_all_handlers() if handler.id == "on_Pod"}
    pod = {"metadata": {"namespace": "team", "name": "a", "labels": {POOL_LABEL: "chat"}}}
    asyncio.run(on_pod(event={"type": None, "object": pod}, namespace="team", labels={}))
    assert told == [(POD, None, {"apiVersion": "v1", "kind": "Pod", **pod})]


def test_only_labelled_children_are_watched_and_every_pool() -> None:
    selectors = watch_settings().watching.label_selectors
    watched = {each: selectors.get((each.group, each.version, each.plural)) for each in (POOL, *CHILDREN, POD)}
    assert watched == {POOL: None} | dict.fromkeys((*CHILDREN, POD), POOL_LABEL)
