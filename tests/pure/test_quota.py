"""Quotas of a namespace: which pods they count, how many more replicas they allow, and what follows from that."""

import asyncio
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from pools import NOW, SETTINGS, carried_out, inspected, load, pod, pool, settled
from tidegate_operator.api.reasons import Reason
from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.decisions.plan import Plan
from tidegate_operator.decisions.planning import plan
from tidegate_operator.errors import Forbidden, ServerFault
from tidegate_operator.kube import ApiServer
from tidegate_operator.labels import RETRIED_ANNOTATION
from tidegate_operator.report.status import status
from tidegate_operator.resources import Manifest, Resource
from tidegate_operator.sizing.capacity import num_held
from tidegate_operator.world.observed import Node, Observed
from tidegate_operator.world.quota import (
    LOOK_SECONDS,
    NO_QUOTA,
    REFUSED_LOOK_SECONDS,
    Quota,
    Room,
    claim,
    num_to_order,
    read_quota,
    room,
)
from tidegate_operator.world.quotas import QUOTAS_TTL_SECONDS, QuotaCache

GPU = "requests.nvidia.com/gpu"
TEMPLATE = {
    "spec": {
        "containers": [
            {"resources": {"requests": {"nvidia.com/gpu": "2", "cpu": "500m"}, "limits": {"memory": "8Gi"}}},
            {"resources": {"requests": {"cpu": "1"}}},
        ],
        "initContainers": [{"resources": {"requests": {"cpu": "4"}, "limits": {"memory": "1Gi"}}}],
    }
}


def quota(hard: str = "4", used: str = "0", key: str = GPU, **facts: Any) -> Quota:
    return Quota("team", facts.pop("name", "gpus"), {key: hard}, {key: used}, **facts)


def test_a_pod_claims_what_its_containers_ask_for_together_or_one_init_container_alone() -> None:
    found = {name: str(number) for name, number in claim(TEMPLATE).items()}
    assert found == {
        "pods": "1", "count/pods": "1", GPU: "2", "requests.cpu": "4", "cpu": "4", "limits.memory": "8589934592",
    }  # fmt: skip


def test_a_sidecar_counts_beside_the_engine_as_it_does_for_the_api_server() -> None:
    sidecar = {"restartPolicy": "Always", "resources": {"requests": {"cpu": "250m"}}}
    template = {"spec": {**TEMPLATE["spec"], "initContainers": [sidecar]}}
    assert claim(template)["requests.cpu"] == Decimal("1.75")


@pytest.mark.parametrize(
    ("quotas", "num_more", "why"),
    [
        ([], None, ""),
        ([quota(key="requests.amd.com/gpu")], None, ""),
        (
            [quota("5", "2")],
            1,
            "gpus allows requests.nvidia.com/gpu 5, 2 is used and a replica asks for 2",
        ),
        ([quota("4", "9")], 0, "gpus allows requests.nvidia.com/gpu 4, 9 is used and a replica asks for 2"),
        ([quota("40"), quota("3", "1", key="pods", name="small")], 2,
         "small allows pods 3, 1 is used and a replica asks for 1"),
        ([quota("20Gi", "1536Mi", key="limits.memory")], 2,
         "gpus allows limits.memory 20Gi, 1536Mi is used and a replica asks for 8Gi"),
        ([quota("10", "500m", key="cpu")], 2, "gpus allows cpu 10, 500m is used and a replica asks for 4"),
    ],
)  # fmt: skip
def test_the_tightest_quota_says_how_many_more_replicas_there_may_be(
    quotas: list[Quota], num_more: int | None, why: str
) -> None:
    found = room(quotas, TEMPLATE)
    assert (found.num_more, found.why) == (num_more, why and f"ResourceQuota {why}")


def scoped(*scopes: str, **selector: Any) -> Quota:
    spec: dict[str, Any] = {"scopes": list(scopes)}
    if selector:
        spec["scopeSelector"] = {"matchExpressions": [{"scopeName": "PriorityClass", **selector}]}
    counts = {"hard": {"pods": "1"}, "used": {"pods": "1"}}
    return read_quota({"metadata": {"namespace": "team", "name": "some"}, "spec": spec, "status": counts})


@pytest.mark.parametrize(
    ("quota", "counts"),
    [
        (scoped("NotTerminating"), True),
        (scoped("NotBestEffort"), True),
        (scoped("Terminating"), False),
        (scoped("BestEffort"), False),
        (scoped("PriorityClass"), True),
        (scoped(operator="In", values=["high", "low"]), True),
        (scoped(operator="NotIn", values=["high"]), False),
        (scoped(operator="Exists"), True),
        (scoped(operator="DoesNotExist"), False),
        (scoped("NotTerminating", operator="In", values=["low"]), False),
    ],
)
def test_a_quota_of_other_pods_does_not_count(quota: Quota, counts: bool) -> None:
    template = {"spec": {**TEMPLATE["spec"], "priorityClassName": "high"}}
    assert (room([quota], template) != NO_QUOTA) is counts


def test_pending_surging_and_draining_replicas_hold_their_share_and_ended_ones_do_not() -> None:
    pods = (
        pod("ready"), pod("pending", ready_since=None, node=""), pod("surge", template="new"),
        pod("draining", draining_since=NOW, is_serving=False), pod("leaving", is_terminating=True),
        pod("failed", is_terminating=True, has_ended=True),
    )  # fmt: skip
    assert num_held(pods) == 5


# what follows


def busy(subject: InferencePool, *quotas: Quota) -> tuple[Plan, Observed]:
    """One overloaded replica of a pool that may have many."""
    observed = settled(subject)
    template = plan(subject, observed, SETTINGS, NOW).revisions.current
    assert template is not None
    serving = replace(observed, pods=(pod(template=template.template_hash),), quotas=quotas)
    overloaded = replace(serving, loads={"chat-a": load(running=template.sizing.slots, waiting=90, eta_seconds=60.0)})
    return plan(subject, overloaded, SETTINGS, NOW), overloaded


def test_the_scaler_orders_no_more_than_quotas_allow_and_says_which_one_it_is() -> None:
    subject = pool(maxReplicas=8)
    free, _ = busy(subject)
    assert free.size is not None
    assert free.size.num_desired > 1, "the load asks for more"
    capped, observed = busy(subject, quota("1", "1"))
    assert capped.size is not None
    assert (capped.size.num_desired, capped.size.limit) == (1, Reason.QUOTA_EXCEEDED)
    shown = next(
        each for each in status(subject, observed, capped, (), NOW).conditions if each.type == "ScalingLimited"
    )
    assert (shown.status, shown.reason) == ("True", "QuotaExceeded")
    assert "ResourceQuota gpus allows requests.nvidia.com/gpu 1, 1 is used and a replica asks for 1" in shown.message
    wider, _ = busy(subject, quota("2", "1"))
    assert wider.size is not None
    assert wider.size.num_desired == 2


def test_a_minimum_that_quotas_do_not_allow_is_not_insisted_on() -> None:
    capped, _ = busy(pool(minReplicas=3, maxReplicas=8), quota("1", "1"))
    assert capped.size is not None
    assert capped.size.num_desired <= 3, "what was ordered when the pool was new stays ordered"
    observed = settled(pool(maxReplicas=8))
    grown = pool(minReplicas=3, maxReplicas=8)
    steps = plan(grown, replace(observed, pods=(pod(),), quotas=(quota("1", "1"),)), SETTINGS, NOW)
    assert steps.size is not None
    assert (steps.size.num_desired, steps.size.limit) == (1, Reason.QUOTA_EXCEEDED)


def test_a_smaller_quota_takes_no_replica_away() -> None:
    subject = pool(maxReplicas=8)
    observed = settled(subject)
    pods = tuple(pod(f"chat-{name}") for name in "abc")
    three = replace(observed, pods=pods, quotas=(quota("1", "3"),))
    deployment = next(each for each in observed.children if each["kind"] == "Deployment")
    annotations = {**deployment["metadata"]["annotations"], "tidegate.dev/desired-replicas": "3"}
    grown = {**deployment, "metadata": {**deployment["metadata"], "annotations": annotations}}
    children = tuple(grown if each is deployment else each for each in observed.children)
    steps = plan(subject, replace(three, children=children), SETTINGS, NOW)
    assert steps.size is not None
    assert steps.size.num_desired == 3


def test_a_rollout_does_not_surge_where_no_quota_is_left_for_one_more_although_a_device_is_free() -> None:
    node = Node("a", {}, {"nvidia.com/gpu": "8"})
    wish = pool(context={"max": 2048, "min": 1024})
    serving = replace(settled(), pods=(pod(),), nodes=(node,))
    surge, replaced = (
        plan(wish, replace(serving, quotas=quotas), SETTINGS, NOW).rollout for quotas in ((), (quota("1", "1"),))
    )
    assert surge is not None
    assert replaced is not None
    assert (surge.strategy, replaced.strategy) == ("Surge", "Replace")
    assert "no quota is left for one more replica" in replaced.memory.why


def test_pods_that_a_quota_refuses_have_its_reason_and_the_words_of_the_api_server() -> None:
    words = 'pods "chat-1" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=1'
    steps = replace(plan(pool(), settled(), SETTINGS, NOW), pods_refused=words)
    ready = status(pool(), settled(), steps, (), NOW).conditions[0]
    assert (ready.reason, ready.message) == ("QuotaExceeded", words)


TWO = {"replicas": 2, "scaling": {"mode": "Manual"}}
REFUSED = {
    "type": "ReplicaFailure", "status": "True", "lastTransitionTime": str(NOW),
    "message": 'pods "chat-1" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=1',
}  # fmt: skip


@pytest.mark.parametrize(
    ("facts", "number"),
    [
        pytest.param({"num_wanted": 5, "room": NO_QUOTA}, 5, id="no quota"),
        pytest.param({"num_wanted": 2, "room": Room(1)}, 1, id="a new pool gets what there is"),
        pytest.param({"num_wanted": 2, "room": Room(0)}, 0, id="a new pool where nothing is left"),
        pytest.param({"num_wanted": 5, "num_ordered": 1, "num_live": 1, "room": Room(2)}, 3, id="more"),
        pytest.param({"num_wanted": 5, "num_ordered": 3, "num_live": 1, "room": Room(0)}, 3, id="pods not seen yet"),
        pytest.param({"num_wanted": 2, "num_ordered": 2, "num_live": 1, "room": Room(0), "is_refused": True}, 1,
                     id="what is refused is taken back"),
        pytest.param({"num_wanted": 2, "num_ordered": 2, "num_live": 1, "room": Room(1), "is_refused": True}, 2,
                     id="unless there is room by now"),
        pytest.param({"num_wanted": 1, "num_ordered": 3, "num_live": 3, "room": Room(0)}, 1, id="fewer"),
        pytest.param({"num_wanted": 3, "num_ordered": 3, "num_live": 3, "room": Room(0), "is_refused": True}, 3,
                     id="a smaller quota takes nothing away"),
    ],
)  # fmt: skip
def test_the_deployment_asks_for_what_lives_and_what_quotas_leave(facts: dict[str, Any], number: int) -> None:
    assert num_to_order(**{"num_ordered": 0, "num_live": 0, "is_refused": False, **facts}) == number


def ordered(steps: Plan, observed: Observed) -> int:
    """Replicas of the Deployment once the plan was carried out."""
    found = carried_out(observed, steps).child("Deployment", "chat")
    assert found is not None
    return int(found["spec"]["replicas"])


def serving(observed: Observed, num: int, **facts: Any) -> Observed:
    """So many replicas, and what the Deployment's controller says."""
    deployment = observed.child("Deployment", "chat")
    assert deployment is not None
    template = deployment["spec"]["template"]["metadata"]["labels"]["tidegate.dev/template"]
    counts = {"observedGeneration": 1, "replicas": num, "updatedReplicas": num, **facts}
    children = tuple({**each, "status": counts} if each is deployment else each for each in observed.children)
    pods = tuple(pod(f"chat-{i}", template=template, node="gpu-1") for i in range(num))
    return replace(observed, children=children, pods=pods)


def test_a_pool_above_its_quota_is_as_large_as_may_be_says_what_is_wanted_and_grows_with_the_quota() -> None:
    subject = pool(**TWO)
    new = replace(Observed(), inspections=(inspected(),), quotas=(quota("1", "0"),))
    for _ in range(4):
        new = carried_out(new, plan(subject, new, SETTINGS, NOW))
    observed = replace(serving(new, 1), quotas=(quota("1", "1"),))
    steps = plan(subject, observed, SETTINGS, NOW)
    assert ordered(steps, observed) == 1
    assert steps.requeue_after_seconds <= LOOK_SECONDS, "no watch tells of a quota that was raised"
    shown = status(subject, observed, steps, (), NOW)
    assert (shown.desired_replicas, shown.ready, shown.conditions[0].reason) == (2, "1/2", "QuotaExceeded")
    assert shown.conditions[0].message == (
        "2 replicas are wanted, of which 1 can be: "
        "ResourceQuota gpus allows requests.nvidia.com/gpu 1, 1 is used and a replica asks for 1"
    )
    assert plan(subject, carried_out(observed, steps), SETTINGS, NOW).is_satisfied

    raised = replace(observed, quotas=(quota("2", "1"),))
    steps = plan(subject, raised, SETTINGS, NOW)
    assert (steps.orders_more, steps.held_by_quota, ordered(steps, raised)) == (True, "", 2)


def test_a_pool_without_any_room_asks_for_nothing_and_looks_again() -> None:
    observed = replace(Observed(), inspections=(inspected(),), quotas=(quota("1", "1"),))
    steps = plan(pool(), observed, SETTINGS, NOW)
    assert ordered(steps, observed) == 0
    assert steps.requeue_after_seconds <= LOOK_SECONDS
    waiting = carried_out(observed, steps)
    free = replace(waiting, quotas=())
    assert ordered(plan(pool(), free, SETTINGS, NOW), free) == 1


def test_an_order_that_was_refused_is_taken_back_so_that_a_raised_quota_is_a_new_one() -> None:
    subject = pool(**TWO)
    refused = replace(serving(settled(subject), 1, conditions=[REFUSED]), quotas=(quota("1", "1"),))
    steps = plan(subject, refused, SETTINGS, NOW)
    assert ordered(steps, refused) == 1
    assert status(subject, refused, steps, (), NOW).desired_replicas == 2
    assert [note.reason for note in steps.notes] == [], "nobody scaled it down"


def test_while_a_rollout_runs_a_refused_order_stands_since_an_old_replica_would_go_for_it() -> None:
    subject = pool(**TWO)
    wish = pool(**TWO, context={"max": 2048, "min": 1024})
    before = replace(serving(settled(subject), 2), quotas=(quota("2", "2"),))
    after = carried_out(before, plan(wish, before, SETTINGS, NOW))
    pods = (before.pods[0], replace(before.pods[1], is_terminating=True))
    rolling = replace(serving(after, 1, updatedReplicas=0, conditions=[REFUSED]), pods=pods)
    assert ordered(plan(wish, rolling, SETTINGS, NOW), rolling) == 2


def retried(observed: Observed) -> str:
    found = observed.child("Deployment", "chat")
    assert found is not None
    return str(found["metadata"]["annotations"].get(RETRIED_ANNOTATION, ""))


def test_a_refused_pod_is_tried_anew_once_when_there_is_room_for_it() -> None:
    wish = pool(**TWO, context={"max": 2048, "min": 1024})
    before = replace(serving(settled(pool(**TWO)), 2), quotas=(quota("2", "2"),))
    after = carried_out(before, plan(wish, before, SETTINGS, NOW))
    stays, leaves = before.pods[0], replace(before.pods[1], is_terminating=True)
    refused = replace(serving(after, 1, updatedReplicas=0, conditions=[REFUSED]), pods=(stays, leaves))
    waiting = plan(wish, refused, SETTINGS, NOW)
    assert retried(carried_out(refused, waiting)) == "", "the old replica still drains"
    assert waiting.requeue_after_seconds <= REFUSED_LOOK_SECONDS

    free = replace(refused, pods=(stays,), quotas=(quota("2", "1"),))
    said = carried_out(free, plan(wish, free, SETTINGS, NOW))
    told = replace(serving(said, 1, updatedReplicas=0, conditions=[REFUSED]), pods=(stays,))
    assert retried(told) == (
        "refused at 2026-11-29T12:00:00Z; "
        "ResourceQuota gpus allows requests.nvidia.com/gpu 2, 1 is used and a replica asks for 1"
    )
    assert ordered(plan(wish, free, SETTINGS, NOW), free) == 2
    assert plan(wish, told, SETTINGS, NOW).is_satisfied, "once for a refusal, however often it is looked at"
    larger = replace(told, quotas=(quota("3", "1"),))
    assert not plan(wish, larger, SETTINGS, NOW).is_satisfied, "other room is another chance"
    served = replace(serving(told, 2), quotas=(quota("2", "2"),))
    assert retried(carried_out(served, plan(wish, served, SETTINGS, NOW))) == retried(told), "what was said stays said"


class Namespaces(ApiServer):
    def __init__(self) -> None:
        self.asked: list[str | None] = []
        self.fault: Exception | None = None

    async def list(
        self, resource: Resource, namespace: str | None, *, labels: str = "", fields: str = ""
    ) -> tuple[Manifest, ...]:
        self.asked.append(namespace)
        if self.fault:
            raise self.fault
        return ({"metadata": {"namespace": namespace or "a", "name": "q"}, "status": {"hard": {"pods": "1"}}},)


@pytest.mark.parametrize(("namespaces", "asked"), [((), [None]), (("a", "b"), ["a", "b"])])
def test_quotas_of_all_namespaces_are_read_together_a_few_times_a_minute(
    namespaces: tuple[str, ...], asked: list[str | None]
) -> None:
    async def look() -> None:
        now, kube = 0.0, Namespaces()
        cache = QuotaCache(kube, namespaces, clock=lambda: now)
        first, _, other = await asyncio.gather(cache.of("a"), cache.of("a"), cache.of("c"))
        assert ([each.name for each in first], other, kube.asked) == (["q"], (), asked)
        now = 1.0
        await cache.of("a", max_age_seconds=0.0)
        assert kube.asked == [*asked, *asked], "before an order it is asked anew"
        now = QUOTAS_TTL_SECONDS + 2
        kube.fault = ServerFault("HTTP 500")
        assert await cache.of("a") == first, "what was known stays known"
        now += QUOTAS_TTL_SECONDS + 1
        kube.fault = Forbidden("HTTP 403")
        assert await cache.of("a") == ()

    asyncio.run(look())
