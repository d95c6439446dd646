"""The PodDisruptionBudget: one engine at a time where there are two to keep, none over a single one."""

from typing import Any

import pytest

from pools import NOW, SETTINGS, carried_out, pool, settled
from tidegate_operator.decisions.plan import Plan
from tidegate_operator.decisions.planning import plan

TWO = {"minReplicas": 2, "replicas": 2}


def budgets(manifests: Any) -> list[Any]:
    return [each for each in manifests if each["kind"] == "PodDisruptionBudget"]


def step(**spec: Any) -> Plan:
    return plan(pool(**spec), settled(), SETTINGS, NOW)


@pytest.mark.parametrize(
    ("spec", "is_kept"),
    [
        ({}, False),
        (TWO, True),
        ({"minReplicas": 1, "maxReplicas": 8, "replicas": 5}, False),
        ({"scaling": {"mode": "Manual"}, "replicas": 3}, True),
        ({"scaling": {"mode": "Manual"}, "replicas": 1}, False),
        ({**TWO, "suspend": True}, False),
    ],
    ids=["one", "at least two", "as few as one", "manually three", "manually one", "suspended"],
)
def test_only_a_pool_that_keeps_two_replicas_or_more_has_a_budget(spec: dict[str, Any], is_kept: bool) -> None:
    assert bool(budgets(step(**spec).apply)) is is_kept


def test_it_gives_one_engine_at_a_time_and_holds_no_node_for_a_broken_one() -> None:
    (budget,) = budgets(step(**TWO).apply)
    assert budget["spec"] == {
        "maxUnavailable": 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": {"tidegate.dev/pool": "chat", "tidegate.dev/role": "engine"}},
    }


def test_it_goes_when_the_pool_may_be_smaller() -> None:
    observed = carried_out(settled(), step(**TWO))
    (gone,) = plan(pool(), observed, SETTINGS, NOW).delete
    assert (gone["kind"], gone["metadata"]["name"]) == ("PodDisruptionBudget", "chat-engines")
    assert not budgets(carried_out(observed, plan(pool(), observed, SETTINGS, NOW)).children)
