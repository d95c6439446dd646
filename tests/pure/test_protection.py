"""Which replicas autoscalers of nodes are asked to leave alone, and that the answer settles."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from pools import NOW, SETTINGS, pod, pool, settled
from tidegate_operator.api.reasons import Reason
from tidegate_operator.apply import apply
from tidegate_operator.decisions.plan import Plan
from tidegate_operator.decisions.planning import plan
from tidegate_operator.decisions.protection import DO_NOT_DISRUPT, plan_protection
from tidegate_operator.errors import Forbidden
from tidegate_operator.resources import Manifest, Resource
from tidegate_operator.world.observed import Pod, Trouble
from tidegate_operator.world.readers import read_pod

LOADING = pod(ready_since=None, scheduled_at=NOW)
DRAINING = pod(draining_since=NOW - timedelta(seconds=5), is_serving=False)
FAILING = pod(ready_since=None, scheduled_at=NOW, trouble=Trouble(Reason.ENGINE_FAILING, "exit code 1"))
WAITING = pod(ready_since=None)


@pytest.mark.parametrize(
    ("subject", "is_protected"),
    [(LOADING, True), (DRAINING, True), (pod(), False), (FAILING, False), (WAITING, False)],
    ids=["loading", "draining", "serving", "failing", "without a node"],
)
def test_a_replica_is_protected_while_it_loads_or_drains(subject: Pod, *, is_protected: bool) -> None:
    (change,) = plan_protection((replace(subject, is_protected=not is_protected),), {})
    assert change.is_on is is_protected
    assert set(change.keys) == set(DO_NOT_DISRUPT)
    assert plan_protection((replace(subject, is_protected=is_protected),), {}) == (), "it is so already"


def test_a_pod_that_leaves_is_left_alone() -> None:
    assert plan_protection((replace(LOADING, is_terminating=True),), {}) == ()


def test_what_the_user_set_for_all_pods_is_neither_changed_nor_removed() -> None:
    one, other = DO_NOT_DISRUPT
    (change,) = plan_protection((LOADING,), {one: "true"})
    assert change.keys == (other,)
    assert plan_protection((LOADING,), DO_NOT_DISRUPT) == ()


def test_the_plan_protects_and_is_content_afterwards() -> None:
    template = next(each for each in settled().children if each["kind"] == "Deployment")["spec"]["template"]
    starting = replace(LOADING, template=template["metadata"]["labels"]["tidegate.dev/template"])
    steps = plan(pool(), replace(settled(), pods=(starting,)), SETTINGS, NOW)
    assert [each.pod.name for each in steps.protect] == ["chat-a"]
    assert "\nprotect chat-a" in f"\n{steps}"
    marked = replace(starting, is_protected=True)
    assert plan(pool(), replace(settled(), pods=(marked,)), SETTINGS, NOW).protect == ()


def manifest(annotations: dict[str, str]) -> dict[str, Any]:
    metadata = {"name": "a", "uid": "u", "creationTimestamp": "2026-01-02T03:04:05Z", "annotations": annotations}
    return {"metadata": metadata, "spec": {}, "status": {}}


def test_only_our_own_mark_says_that_we_protected_it() -> None:
    assert read_pod(manifest({"tidegate.dev/protected": "true"})).is_protected
    assert not read_pod(manifest(DO_NOT_DISRUPT)).is_protected, "a person did that, and we never take it away"


class Policy:
    """An API server whose admission forbids these annotations."""

    async def patch(self, resource: Resource, namespace: str, name: str, patch: Manifest) -> Manifest:
        raise Forbidden(f"{name}: admission webhook denied the request", 403)


def test_a_policy_that_forbids_the_marks_leaves_the_pool_reconciled(caplog: pytest.LogCaptureFixture) -> None:
    steps = Plan("team", protect=plan_protection((LOADING,), {}))
    assert asyncio.run(apply(Policy(), None, steps)) == ()  # type: ignore[arg-type]
    assert "pod team/chat-a is not protected: chat-a: admission webhook denied the request" in caplog.text
