"""Rollouts: surge or replace, when a new template is given up, what is remembered, and what the sizes do meanwhile."""

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from pools import NOW, SETTINGS, carried_out, cpu_pool_manifest, load, pod, pool, settled, stored
from tidegate_operator.api.conditions import ConditionType
from tidegate_operator.api.reasons import Reason
from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.decisions.plan import Plan
from tidegate_operator.decisions.planning import plan
from tidegate_operator.labels import ROLLOUT_ANNOTATION
from tidegate_operator.report.status import status
from tidegate_operator.world.observed import Node, Observed, Pod, Trouble
from tidegate_operator.world.quota import Quota

GPU = "nvidia.com/gpu"
CHANGED = {"context": {"max": 2048, "min": 1024}}
OOM = Trouble(Reason.OUT_OF_MEMORY, "the kernel killed the engine")
NO_ROOM = Trouble(Reason.UNSCHEDULABLE, "0/3 nodes are available")
SURGE, REPLACE = {"maxSurge": 1, "maxUnavailable": 0}, {"maxSurge": 0, "maxUnavailable": 1}


def node(name: str = "gpu-1", num: int = 1, used: int = 0, **labels: str) -> Node:
    return Node(name, labels, {GPU: str(num)}, used={GPU: str(used)})


def step(observed: Observed, seconds: float = 0, subject: InferencePool | None = None, **spec: Any) -> Plan:
    return plan(subject or pool(**spec), observed, SETTINGS, NOW + timedelta(seconds=seconds))


def template(steps: Plan) -> str:
    assert steps.rollout is not None
    return steps.rollout.current.template_hash


def deployments(steps: Plan) -> list[Any]:
    """What is written to the Deployment."""
    return [each for each in steps.apply if each["kind"] == "Deployment"]


def serving(observed: Observed | None = None, num: int = 1, **spec: Any) -> Observed:
    """A pool whose first template has served, as the Deployment remembers it."""
    observed = observed or settled()
    observed = carried_out(observed, step(observed, **spec))
    first = template(step(observed, **spec))
    observed = replace(observed, pods=tuple(pod(f"old-{i}", template=first) for i in range(num)))
    observed = carried_out(observed, step(observed, **spec))
    return with_status(observed)


def with_status(observed: Observed, **facts: Any) -> Observed:
    """The Deployment as its controller leaves it; keywords replace parts of its status."""
    live = [pod for pod in observed.pods if not pod.is_terminating]
    children = []
    for each in observed.children:
        if each["kind"] == "Deployment":
            current = each["spec"]["template"]["metadata"]["labels"]["tidegate.dev/template"]
            num_updated = sum(pod.template == current for pod in live)
            counts = {"observedGeneration": 1, "replicas": len(live), "updatedReplicas": num_updated, **facts}
            each = {**each, "status": counts}  # noqa: PLW2901 - the same object, further along
        children.append(each)
    return replace(observed, children=tuple(children))


def deployment(observed: Observed) -> dict[str, Any]:
    found = observed.child("Deployment", "chat")
    assert found is not None
    return dict(found)


def strategy(observed: Observed) -> dict[str, int]:
    return dict(deployment(observed)["spec"]["strategy"]["rollingUpdate"])


def memory(observed: Observed) -> dict[str, Any]:
    return dict(json.loads(deployment(observed)["metadata"]["annotations"][ROLLOUT_ANNOTATION]))


def rolling(new: Pod, *others: Pod, nodes: tuple[Node, ...] | None = None, num_old: int = 1, **spec: Any) -> Observed:
    """The changed template is deployed; `new` is its first pod beside old ones."""
    wish = {**CHANGED, **spec}
    before = replace(serving(num=num_old, **spec), nodes=nodes)
    after = carried_out(before, step(before, **wish))
    current = template(step(before, **wish))
    pods = (*before.pods, replace(new, template=current), *(replace(each, template=current) for each in others))
    return with_status(replace(after, pods=pods))


def starting(name: str = "new", **facts: Any) -> Pod:
    """It has its node and is not ready."""
    return pod(name, **{"ready_since": None, "created_at": NOW, "scheduled_at": NOW, **facts})


@pytest.mark.parametrize(
    ("nodes", "expected", "why"),
    [
        pytest.param((node(num=2, used=1),), SURGE, "1 nvidia.com/gpu free on node gpu-1", id="one is free"),
        pytest.param((node(used=1), node("gpu-2")), SURGE, "free on node gpu-2", id="free on another node"),
        pytest.param((node(used=1),), REPLACE, "no node has 1 nvidia.com/gpu free", id="none is free"),
        pytest.param((), REPLACE, "no node has 1 nvidia.com/gpu free", id="no nodes"),
        pytest.param(None, REPLACE, "may not look at nodes", id="nodes may not be read"),
    ],
)
def test_a_rollout_surges_where_an_accelerator_is_free_and_else_replaces_one_by_one(
    nodes: tuple[Node, ...] | None, expected: dict[str, int], why: str
) -> None:
    observed = rolling(starting(), nodes=nodes)
    assert strategy(observed) == expected
    assert why in memory(observed)["why"]


def test_free_accelerators_of_a_node_that_the_pool_may_not_use_do_not_count() -> None:
    nodes = node(), node("gpu-2", used=1, gpu="a100")
    observed = rolling(starting(), nodes=nodes, pod={"nodeSelector": {"gpu": "a100"}})
    assert strategy(observed) == REPLACE


def test_nobody_leaves_for_a_replica_that_its_node_is_too_small_for() -> None:
    wish = {"accelerator": {"memory": "24Gi", "count": 2}}
    small, large = node(used=1), node("gpu-2", num=2)
    before = replace(serving(), nodes=(small,))
    before = replace(before, pods=tuple(replace(each, node="gpu-1") for each in before.pods))
    after = carried_out(before, step(before, **wish))
    assert strategy(after) == SURGE
    assert "no replica is on a node with 2 nvidia.com/gpu" in memory(after)["why"]
    new = starting(scheduled_at=None, trouble=NO_ROOM, is_running=False, template=template(step(before, **wish)))
    waiting = with_status(replace(after, pods=(*before.pods, new)))
    assert not deployments(step(waiting, 3600, **wish))
    assert not deployments(step(replace(waiting, nodes=(small, large)), 3600, **wish)), "it comes up just now"
    moved = replace(waiting, nodes=(small, large), pods=(replace(before.pods[0], node="gpu-2"), new))
    assert deployments(step(moved, 3600, **wish)), "who leaves makes room"


def test_a_cpu_pool_surges_and_the_users_word_comes_first() -> None:
    (on_cpu,) = deployments(step(settled(), subject=stored(cpu_pool_manifest())))
    assert on_cpu["spec"]["strategy"]["rollingUpdate"] == SURGE
    (asked,) = deployments(step(settled(), subject=stored(cpu_pool_manifest(rollout={"strategy": "Replace"}))))
    assert asked["spec"]["strategy"]["rollingUpdate"] == REPLACE


def test_what_was_chosen_when_the_rollout_began_stays_although_the_surge_takes_the_free_accelerator() -> None:
    observed = rolling(starting(), nodes=(node(num=2, used=1),))
    full = replace(observed, nodes=(node(num=2, used=2),))
    assert not deployments(step(full, **CHANGED))
    assert strategy(full) == SURGE


def test_a_surge_that_finds_no_room_becomes_a_replacement_unless_the_user_wants_it() -> None:
    waiting = starting(scheduled_at=None, trouble=NO_ROOM, is_running=False)
    observed = rolling(waiting, nodes=(node(num=2, used=1),))
    assert not deployments(step(observed, 29, **CHANGED))
    (found,) = deployments(step(observed, 30, **CHANGED))
    assert found["spec"]["strategy"]["rollingUpdate"] == REPLACE
    patient = {"rollout": {"strategy": "Surge"}}
    insisting = rolling(waiting, nodes=(), **patient)
    assert not deployments(step(insisting, 3600, **CHANGED, **patient))


def test_a_surge_waits_for_a_replica_that_is_about_to_leave_its_node() -> None:
    waiting = starting(scheduled_at=None, trouble=NO_ROOM, is_running=False)
    observed = rolling(waiting, nodes=(node(num=2, used=1),))
    leaving = replace(observed, pods=(*observed.pods, pod("leaving", is_terminating=True)))
    assert not deployments(step(leaving, 60, **CHANGED))
    evicted = replace(observed, pods=(*observed.pods, pod("evicted", is_terminating=True, has_ended=True)))
    assert deployments(step(evicted, 60, **CHANGED))


def test_a_surge_that_a_quota_refuses_becomes_a_replacement() -> None:
    observed = rolling(starting(), nodes=(node(num=2, used=1),))
    refusal = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota", "lastTransitionTime": str(NOW)}
    refused = with_status(replace(observed, pods=observed.pods[:1]), conditions=[refusal])
    (found,) = deployments(step(refused, **CHANGED))
    assert found["spec"]["strategy"]["rollingUpdate"] == REPLACE


def test_only_a_template_that_was_never_deployed_asks_for_a_fresh_look_at_the_nodes() -> None:
    assert step(serving(), **CHANGED).begins_rollout
    assert not step(rolling(starting()), **CHANGED).begins_rollout
    assert not step(serving()).begins_rollout


def given_up(observed: Observed, seconds: float, **spec: Any) -> tuple[Observed, Plan]:
    steps = step(observed, seconds, **{**CHANGED, **spec})
    return carried_out(observed, steps), steps


def deadline(observed: Observed) -> int:
    current = step(observed, **CHANGED).revisions.current
    assert current is not None
    return current.progress_deadline_seconds


def test_a_template_that_is_not_ready_in_time_goes_back_to_the_last_good_one_and_is_not_tried_again() -> None:
    observed = rolling(starting())
    good = memory(observed)["good"]
    seconds = deadline(observed)
    assert not deployments(step(observed, seconds - 1, **CHANGED))
    back, steps = given_up(observed, seconds)
    assert template(steps) == good
    assert deployment(back)["spec"]["template"]["metadata"]["labels"]["tidegate.dev/template"] == good
    assert not steps.revisions.is_of_these_inputs
    later = with_status(replace(back, pods=back.pods[:1]))
    assert not deployments(step(later, 10 * seconds, **CHANGED))


def test_a_restarted_operator_whose_status_write_failed_still_knows_what_was_given_up() -> None:
    back, _ = given_up(rolling(starting(trouble=OOM, num_restarts=3)), 60)
    steps = step(with_status(replace(back, pods=back.pods[:1])), 120, **CHANGED)
    assert not deployments(steps)
    assert steps.rollout is not None
    assert steps.rollout.given_up is not None
    assert steps.rollout.given_up.reason is Reason.OUT_OF_MEMORY


@pytest.mark.parametrize(
    ("facts", "seconds", "reason"),
    [
        pytest.param({"trouble": OOM, "num_restarts": 3}, 60, Reason.OUT_OF_MEMORY, id="ends again and again"),
        pytest.param({"trouble": OOM, "num_restarts": 2}, 60, None, id="may yet come"),
        pytest.param({"trouble": Trouble(Reason.IMAGE_UNAVAILABLE, "ErrImagePull"), "is_running": False}, 3600,
                     Reason.IMAGE_UNAVAILABLE, id="no image"),
        pytest.param({}, 3600, Reason.DEADLINE_EXCEEDED, id="says nothing"),
        pytest.param({"scheduled_at": None, "trouble": NO_ROOM, "is_running": False}, 36_000, None,
                     id="a node boots: the deadline is paused"),
        pytest.param({"scheduled_at": NOW + timedelta(seconds=3500)}, 3600, None, id="its node has just booted"),
    ],
)  # fmt: skip
def test_what_ends_a_rollout_is_its_cause(facts: dict[str, Any], seconds: float, reason: Reason | None) -> None:
    observed = rolling(starting(**facts), nodes=())
    rollout = step(observed, seconds, **CHANGED).rollout
    assert rollout is not None
    assert (rollout.given_up.reason if rollout.given_up else None) is reason


@pytest.mark.parametrize(("num_ended", "is_given_up"), [(2, False), (3, True)])
def test_pods_that_are_evicted_one_after_the_other_end_a_rollout_too(num_ended: int, is_given_up: bool) -> None:
    evicted = [starting(f"evicted-{i}", is_terminating=True, has_ended=True) for i in range(num_ended)]
    cause = step(rolling(starting(), *evicted), 60, **CHANGED).rollout.given_up
    assert (cause is not None) is is_given_up


def test_the_user_sets_the_deadline_and_that_rolls_nothing() -> None:
    quick = {"rollout": {"progressDeadlineSeconds": 20}}
    observed = rolling(starting())
    assert template(step(observed, 19, **CHANGED, **quick)) == template(step(observed, **CHANGED))
    rollout = step(observed, 20, **CHANGED, **quick).rollout
    assert rollout is not None
    assert rollout.given_up is not None


def test_pods_that_the_api_server_refuses_until_the_deadline_end_a_rollout() -> None:
    since = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota", "lastTransitionTime": str(NOW)}
    observed = rolling(starting())
    refused = with_status(replace(observed, pods=()), conditions=[since])
    assert step(refused, 60, **CHANGED).rollout.given_up is None
    cause = step(refused, deadline(observed), **CHANGED).rollout.given_up
    assert (cause.reason, cause.message) == (Reason.PODS_REFUSED, "exceeded quota")


@pytest.mark.parametrize("making_room", ["an old replica drains", "there is room by now"])
def test_a_refused_pod_that_only_has_to_wait_ends_no_rollout(making_room: str) -> None:
    words = {"message": "exceeded quota", "lastTransitionTime": str(NOW)}
    since = {"type": "ReplicaFailure", "status": "True", **words}
    observed = rolling(starting())
    if making_room == "an old replica drains":
        refused = replace(observed, pods=(pod("old-0", is_terminating=True),))
    else:
        gpus = Quota("team", "gpus", {"requests.nvidia.com/gpu": "1"}, {"requests.nvidia.com/gpu": "0"})
        refused = replace(observed, pods=(), quotas=(gpus,))
    rollout = step(with_status(refused, conditions=[since]), deadline(observed), **CHANGED).rollout
    assert rollout is not None
    assert rollout.given_up is None


def test_one_replica_that_served_proves_the_template_and_a_later_bad_node_ends_nothing() -> None:
    observed = rolling(pod("new"), starting("on-a-bad-node", trouble=OOM, num_restarts=9))
    proven = carried_out(observed, step(observed, **CHANGED))
    assert memory(proven)["good"] == template(step(proven, **CHANGED))
    later = step(with_status(replace(proven, pods=proven.pods[2:])), 36_000, **CHANGED)
    assert later.rollout.given_up is None


def test_a_first_template_that_fails_has_nothing_to_go_back_to_and_is_stalled_with_its_cause() -> None:
    observed = with_status(replace(settled(), pods=(starting(template=template(step(settled())), trouble=OOM),)))
    steps = step(observed, 3600)
    assert steps.rollout is not None
    assert steps.rollout.given_up is None
    stalled = status(pool(), observed, steps, (), NOW).condition(ConditionType.STALLED)
    assert stalled is not None
    assert stalled.reason == "OutOfMemory"
    assert "no earlier template to go back to" in stalled.message


def test_an_aborted_rollout_says_its_cause_while_the_old_replicas_serve() -> None:
    back, _ = given_up(rolling(starting(trouble=OOM, num_restarts=3)), 60)
    observed = with_status(replace(back, pods=back.pods[:1]))
    subject = pool(**CHANGED)
    new = status(subject, observed, plan(subject, observed, SETTINGS, NOW), (), NOW)
    found = {each.type: each for each in new.conditions}
    assert (found["Ready"].status, found["Available"].status) == ("False", "True")
    assert found["Stalled"].reason == "RolloutAborted"
    assert "template 2 was given up: OutOfMemory: the kernel killed the engine; 1 replica goes on serving" in (
        found["Stalled"].message
    )
    assert new.rollout is not None
    assert new.rollout.given_up is not None
    assert (new.rollout.revision, new.rollout.given_up.reason) == (1, "OutOfMemory")


def test_another_change_is_tried_and_a_return_to_what_serves_restarts_nothing() -> None:
    back, _ = given_up(rolling(starting(trouble=OOM, num_restarts=3)), 60)
    observed = with_status(replace(back, pods=back.pods[:1]))
    again = step(observed, context={"max": 1024, "min": 512})
    assert again.revisions.current.number == 3
    assert again.rollout.given_up is None
    newer = replace(SETTINGS, engine=replace(SETTINGS.engine, runtime=replace(SETTINGS.engine.runtime, image="e:2")))
    returned = plan(pool(), observed, newer, NOW)
    (found,) = deployments(returned)
    assert found["spec"]["template"] == deployment(observed)["spec"]["template"]
    assert returned.revisions.is_of_these_inputs
    assert not deployments(plan(pool(), carried_out(observed, returned), newer, NOW))


def test_the_last_good_template_is_kept_however_many_changes_fail() -> None:
    observed = rolling(starting(trouble=OOM, num_restarts=3))
    good = memory(observed)["good"]
    for size in (2048, 2000, 1900, 1800):
        spec = {"context": {"max": size, "min": 1024}}
        observed = carried_out(observed, step(observed, **spec))
        current = template(step(observed, **spec))
        failing = starting(f"new-{size}", template=current, trouble=OOM, num_restarts=3)
        observed = with_status(replace(observed, pods=(observed.pods[0], failing)))
        steps = step(observed, 60, **spec)
        assert template(steps) == good
        observed = with_status(carried_out(observed, steps))


@pytest.mark.parametrize(
    "nonsense",
    [
        "{",
        '{"why": "' + "x" * 3000 + '"}',
        '{"given_up": {"wish": "", "revision": 1, "reason": "OutOfMemory", "message": "' + "x" * 3000 + '"}}',
    ],
    ids=["no JSON", "endless why", "endless cause"],
)
def test_nonsense_in_the_annotation_is_no_memory(nonsense: str) -> None:
    observed = serving()
    found = deployment(observed)
    edited = {**found["metadata"], "annotations": {**found["metadata"]["annotations"], ROLLOUT_ANNOTATION: nonsense}}
    others = tuple(each for each in observed.children if each["kind"] != "Deployment")
    meddled = replace(observed, children=(*others, {**found, "metadata": edited}))
    repaired = carried_out(meddled, step(meddled))
    assert memory(repaired)["good"] == template(step(observed))


def test_in_place_a_pool_grows_after_its_rollout_and_a_surge_grows_at_once() -> None:
    bigger = {"scaling": {"mode": "Manual"}, "replicas": 3}
    one = {"scaling": {"mode": "Manual"}, "replicas": 1}
    for nodes, num_replicas in ((None, 1), ((node(num=4, used=1),), 3)):
        before = replace(serving(**one), nodes=nodes)
        after = carried_out(before, step(before, **CHANGED, **bigger))
        assert deployment(after)["spec"]["replicas"] == num_replicas
        new = pod("new", template=template(step(before, **CHANGED, **bigger)))
        done = step(with_status(replace(after, pods=(new,))), **CHANGED, **bigger)
        assert carried_out(after, done).child("Deployment", "chat")["spec"]["replicas"] == 3


def test_a_new_replica_that_waits_for_what_old_ones_hold_is_not_insisted_on_while_they_are_replaced() -> None:
    manual = {"scaling": {"mode": "Manual"}, "replicas": 2}
    waiting = starting(scheduled_at=None, trouble=NO_ROOM, is_running=False)
    observed = rolling(waiting, num_old=1, **manual)
    assert deployment(observed)["spec"]["replicas"] == 2
    freed = carried_out(observed, step(observed, 30, **CHANGED, **manual))
    assert deployment(freed)["spec"]["replicas"] == 1, "so that the one old replica may go, and its successor starts"


def test_a_rollout_that_a_person_paused_says_how_it_goes_on() -> None:
    observed = rolling(starting())
    found = deployment(observed)
    paused = {**found, "spec": {**found["spec"], "paused": True}}
    others = tuple(each for each in observed.children if each["kind"] != "Deployment")
    subject, halted = pool(**CHANGED), replace(observed, children=(*others, paused))
    for each, is_told in ((observed, False), (halted, True)):
        said = status(subject, each, step(each, **CHANGED), (), NOW).condition(ConditionType.PROGRESSING)
        assert said is not None
        assert ("is paused: kubectl rollout resume deployment/chat" in said.message) is is_told


def test_nobody_drains_during_a_rollout() -> None:
    manual = {"scaling": {"mode": "Manual"}, "replicas": 2}
    observed = replace(rolling(starting(), num_old=2, **manual), loads={"old-0": load(), "old-1": load()})
    steps = step(observed, scaling={"mode": "Manual"}, replicas=1, **CHANGED)
    assert not steps.marks
    assert not steps.drain
