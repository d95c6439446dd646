"""Which engine a pool runs: its own image, or the operator's, pinned or following."""

from dataclasses import replace
from typing import Any

from pools import NOW, SETTINGS, carried_out, pool, settled
from tidegate_operator.decisions.plan import Plan, PlanSettings
from tidegate_operator.decisions.planning import plan
from tidegate_operator.report.status import status
from tidegate_operator.world.observed import Observed

NEWER = replace(SETTINGS, engine=replace(SETTINGS.engine, runtime=replace(SETTINGS.engine.runtime, image="engine:2")))
FOLLOW = {"engine": {"upgrade": "Follow"}}
OWN = {"engine": {"image": "mirror.example/engine:1", "upgrade": "Follow"}}


def images(steps: Plan) -> list[str]:
    """Of the Deployment's template, where it is written."""
    found = [each["spec"]["template"]["spec"] for each in steps.apply if each["kind"] == "Deployment"]
    return [spec["containers"][0]["image"] for spec in found]


def settled_with(settings: PlanSettings = SETTINGS, **spec: Any) -> Observed:
    observed = settled()
    for _ in range(2):
        observed = carried_out(observed, plan(pool(**spec), observed, settings, NOW))
    return observed


def test_a_pool_that_follows_rolls_with_the_operators_engine_and_a_pinned_one_does_not() -> None:
    assert images(plan(pool(**FOLLOW), settled_with(**FOLLOW), NEWER, NOW)) == ["engine:2"]
    assert not images(plan(pool(), settled(), NEWER, NOW))


def test_to_follow_or_to_pin_is_no_change_while_there_is_nothing_newer() -> None:
    assert plan(pool(**FOLLOW), settled(), SETTINGS, NOW).is_satisfied
    assert plan(pool(), settled_with(**FOLLOW), SETTINGS, NOW).is_satisfied


def test_a_pinned_pool_that_is_told_to_follow_catches_up_and_one_that_is_pinned_again_stays() -> None:
    caught_up = carried_out(settled(), plan(pool(**FOLLOW), settled(), NEWER, NOW))
    assert images(plan(pool(**FOLLOW), settled(), NEWER, NOW)) == ["engine:2"]
    assert plan(pool(**FOLLOW), caught_up, NEWER, NOW).is_satisfied
    assert plan(pool(), caught_up, SETTINGS, NOW).is_satisfied


def test_what_was_learned_since_rolls_no_pool_that_follows() -> None:
    other_tokens = replace(SETTINGS, engine=replace(SETTINGS.engine, drain_token_sha256=("cd" * 32,)))
    assert plan(pool(**FOLLOW), settled_with(**FOLLOW), other_tokens, NOW).is_satisfied


def test_a_pools_own_image_serves_it_and_inspects_its_model_whatever_the_operators_is() -> None:
    (job,) = plan(pool(**OWN), Observed(), SETTINGS, NOW).apply
    assert job["spec"]["template"]["spec"]["containers"][0]["image"] == "mirror.example/engine:1"
    assert images(plan(pool(**OWN), settled(), SETTINGS, NOW)) == ["mirror.example/engine:1"]
    assert plan(pool(**OWN), settled_with(**OWN), NEWER, NOW).is_satisfied


def test_status_says_which_engine_runs_and_which_one_is_to_be_had() -> None:
    def engine(settings: PlanSettings) -> tuple[str, str | None]:
        found = status(pool(), settled(), plan(pool(), settled(), settings, NOW), (), NOW).engine
        assert found is not None
        return found.image, found.available_image

    assert engine(SETTINGS) == ("engine:1", None)
    assert engine(NEWER) == ("engine:1", "engine:2")
