"""The plan as a table: what is observed on the left, what is to be done on the right; and applied twice it is empty."""

import re
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from pools import (
    NOW,
    SETTINGS,
    carried_out,
    cpu_pool_manifest,
    inspected,
    load,
    pod,
    pool,
    pool_manifest,
    settled,
    stored,
)
from shapes import shape_of
from tidegate_core.termination import ExitCode, TerminationMessage
from tidegate_operator.api.reasons import Reason
from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.decisions.jobs import LONGEST_RETRY_SECONDS
from tidegate_operator.decisions.plan import Plan
from tidegate_operator.decisions.planning import plan
from tidegate_operator.sizing.fitting import find_fit
from tidegate_operator.world.observed import Node, Observed, Trouble


def titles(steps: Plan) -> list[str]:
    return [f"{each['kind']} {each['metadata']['name']}" for each in steps.apply]


def step(observed: Observed, now: Any = NOW, **spec: Any) -> Plan:
    return plan(pool(**spec), observed, SETTINGS, now)


def said(reason: str, message: str = "because") -> str:
    return TerminationMessage(reason=reason, message=message).encode()


def test_a_new_pool_is_inspected_first_and_nothing_else() -> None:
    (job,) = step(Observed()).apply
    assert job["kind"] == "Job"
    assert job["spec"]["template"]["spec"]["containers"][0]["args"] == [
        "inspect", "/models/qwen", "--termination-message",
    ]  # fmt: skip


def test_a_known_shape_gives_every_child_in_one_plan_with_the_deployment_last() -> None:
    steps = step(Observed(inspections=(inspected(),)))
    kinds = [title.split()[0] for title in titles(steps)]
    assert kinds == ["ServiceAccount", "Service", "ControllerRevision", "ControllerRevision", "Deployment"]


def test_a_plan_carried_out_leaves_nothing_to_do() -> None:
    observed = settled()
    assert step(observed).is_satisfied
    assert not observed.inspections, "the inspection Job is gone"


def test_the_same_arguments_give_the_same_plan() -> None:
    observed = replace(settled(), pods=(pod(),), loads={"chat-a": load(running=3)})
    assert step(observed) == step(observed)


def test_a_plan_prints_its_steps() -> None:
    assert "apply Deployment chat replicas 1" in str(step(Observed(inspections=(inspected(),))))
    assert str(step(settled())) == "nothing to do"


@pytest.mark.parametrize(
    ("exit_code", "message", "reason", "is_final"),
    [
        (ExitCode.MODEL_UNREACHABLE, said("ModelNotFound"), Reason.MODEL_NOT_FOUND, False),
        (ExitCode.MODEL_UNREACHABLE, "", Reason.MODEL_NOT_FOUND, False),
        (ExitCode.MODEL_UNSUPPORTED, said("ModelCorrupt"), Reason.MODEL_CORRUPT, False),
        (ExitCode.MODEL_UNSUPPORTED, said("ModelUnsupported"), Reason.MODEL_UNSUPPORTED, True),
        (ExitCode.INTERNAL, "Traceback ...", Reason.INSPECTION_FAILED, False),
        (137, "", Reason.INSPECTION_FAILED, False),
        (ExitCode.OK, "not a shape", Reason.INSPECTION_FAILED, False),
    ],
)
def test_a_failed_inspection_is_named_and_tried_again_where_that_can_help(
    exit_code: int, message: str, reason: Reason, is_final: bool
) -> None:
    observed = Observed(inspections=(inspected(message, exit_code),))
    now, much_later = step(observed), step(observed, NOW + timedelta(seconds=LONGEST_RETRY_SECONDS))
    assert now.model is not None
    assert (now.model.reason, now.model.is_final) == (reason, is_final)
    assert not now.apply
    assert bool(much_later.apply) is not is_final


def test_tries_come_later_and_later_but_not_later_than_five_minutes() -> None:
    waits = []
    for attempt in range(1, 9):
        observed = Observed(inspections=(inspected(said("ModelNotFound"), ExitCode.MODEL_UNREACHABLE, attempt),))
        waits.append(step(observed).requeue_after_seconds)
    assert waits == [10, 20, 40, 80, 160, 300, 300, 300]


def test_a_pool_is_asked_for_its_load_in_short_steps_only_while_it_has_a_pod_on_a_node() -> None:
    timing = SETTINGS.timing
    assert step(settled()).requeue_after_seconds == float("inf")
    assert step(replace(settled(), pods=(pod(is_running=False, ready_since=None),))).requeue_after_seconds == float(
        "inf"
    )
    starting = pod(is_running=False, ready_since=None, node="gpu-1")
    assert step(replace(settled(), pods=(starting,))).requeue_after_seconds == timing.interval_seconds
    serving = replace(settled(), pods=(pod(),), loads={"chat-a": load()})
    assert step(serving).requeue_after_seconds <= timing.idle_interval_seconds


def test_a_fault_stays_known_while_the_next_try_runs() -> None:
    failed = inspected(said("ModelNotFound"), ExitCode.MODEL_UNREACHABLE, 1)
    running = inspected(attempt=2, is_finished=False, finished_at=None, termination=None)
    steps = step(Observed(inspections=(failed, running)))
    assert steps.model is not None
    assert steps.model.reason is Reason.MODEL_NOT_FOUND
    assert steps.is_satisfied


def test_an_inspection_whose_pod_cannot_start_says_why() -> None:
    trouble = Trouble(Reason.UNSCHEDULABLE, "0/3 nodes are available")
    waiting = inspected(is_finished=False, finished_at=None, termination=None, trouble=trouble)
    model = step(Observed(inspections=(waiting,))).model
    assert model is not None
    assert "0/3 nodes are available" in model.message


@pytest.mark.parametrize(("seconds", "reason"), [(9, Reason.INSPECTING), (10, Reason.PODS_REFUSED)])
def test_an_inspection_that_gets_no_pod_says_where_the_reason_is(seconds: float, reason: Reason) -> None:
    waiting = inspected(is_finished=False, finished_at=None, termination=None, has_pod=False)
    model = step(Observed(inspections=(waiting,)), NOW + timedelta(seconds=seconds)).model
    assert model is not None
    assert model.reason is reason
    assert (f"`kubectl describe job {waiting.name} -n team`" in model.message) is (reason is Reason.PODS_REFUSED)


def test_an_answer_that_cannot_be_read_any_more_makes_room_for_the_next_one() -> None:
    observed = settled()
    damaged = tuple(
        {**each, "data": {"uri": "pvc://models/qwen", "shape": {"of": "another operator"}}}
        if each["kind"] == "ControllerRevision" and "-model-" in each["metadata"]["name"] else each
        for each in observed.children
    )  # fmt: skip
    observed = replace(observed, children=damaged)
    asks = step(observed)
    assert [each["kind"] for each in asks.delete] == ["ControllerRevision"]
    assert [title.split()[0] for title in titles(asks)] == ["Job"]
    answered = replace(carried_out(observed, asks), inspections=(inspected(),))
    assert any("-model-" in title for title in titles(step(answered)))
    known = step(carried_out(answered, step(answered)))
    assert (titles(known), [each["kind"] for each in known.delete]) == ([], ["Job"]), "it is done, and its Job goes"


def test_a_corrected_node_selector_is_a_new_inspection() -> None:
    stuck = inspected(is_finished=False, finished_at=None, termination=None)
    (job,) = step(Observed(inspections=(stuck,)), pod={"nodeSelector": {"gpu": "a100"}}).apply
    assert job["metadata"]["name"] != stuck.name
    assert job["spec"]["template"]["spec"]["nodeSelector"] == {"gpu": "a100"}


def test_a_missing_claim_waits_without_a_job() -> None:
    steps = step(Observed(is_claim_missing=True))
    assert steps.model is not None
    assert steps.model.reason is Reason.CLAIM_NOT_FOUND
    assert steps.is_satisfied


def test_a_model_that_does_not_fit_deploys_nothing() -> None:
    steps = step(Observed(inspections=(inspected(),)), accelerator={"memory": "12Gi", "count": 1})
    assert steps.fit is not None
    assert steps.fit.reason is Reason.DOES_NOT_FIT
    assert [title.split()[0] for title in titles(steps)] == ["ControllerRevision"], "only the model is remembered"


def test_a_wish_that_does_not_fit_leaves_the_last_good_template() -> None:
    steps = step(settled(), accelerator={"memory": "12Gi", "count": 1})
    assert steps.is_satisfied
    assert not steps.revisions.is_of_these_inputs


def test_a_template_that_the_api_server_refuses_is_not_remembered_and_the_old_one_scales_on() -> None:
    wish = pool(replicas=3, scaling={"mode": "Manual"}, context={"max": 2048, "min": 1024})
    refused = plan(wish, settled(), SETTINGS, NOW, may_roll=False)
    assert titles(refused) == ["PodDisruptionBudget chat-engines", "Deployment chat"]
    assert refused.apply[1]["spec"]["replicas"] == 3
    assert not refused.revisions.is_of_these_inputs
    assert "ControllerRevision chat-2" in titles(plan(wish, settled(), SETTINGS, NOW))


def gpu_node(**labels: str) -> Node:
    return Node("a", {f"nvidia.com/gpu.{name}": value for name, value in labels.items()}, {"nvidia.com/gpu": "1"})


@pytest.mark.parametrize(
    ("nodes", "memory"),
    [
        pytest.param(None, None, id="no access to nodes"),
        pytest.param((), None, id="no nodes"),
        pytest.param((gpu_node(memory="24576"),), 24576 * 2**20, id="label"),
        pytest.param((gpu_node(product="NVIDIA-L4"),), 23034 * 2**20, id="catalogue"),
        pytest.param((gpu_node(product="NVIDIA-X9"),), None, id="unknown product"),
        pytest.param((Node("a", {}, {"cpu": "64"}),), None, id="no devices"),
        pytest.param((gpu_node(memory="81920"), gpu_node(memory="24576")), 24576 * 2**20, id="the smallest there is"),
    ],
)
def test_the_accelerators_memory_comes_from_the_nodes(nodes: tuple[Node, ...] | None, memory: int | None) -> None:
    fit = step(Observed(inspections=(inspected(),), nodes=nodes), accelerator={}).fit
    assert fit is not None
    if memory is None:
        assert fit.reason is Reason.MEMORY_UNKNOWN
        assert "accelerator.memory" in fit.message
    else:
        assert fit.fit is not None
        assert fit.fit.memory_bytes == memory


def test_a_cluster_without_the_device_is_told_to_get_one_and_how_to_wait_for_one() -> None:
    fit = step(Observed(inspections=(inspected(),), nodes=(Node("a", {}, {"cpu": "64"}),)), accelerator={}).fit
    assert fit is not None
    assert fit.message == (
        "no node that the pool may use has nvidia.com/gpu; add such a node, or set accelerator.resource: cpu; where "
        "nodes are made on demand, set accelerator.memory to that of one device, and replicas wait for a node"
    )


def fit_message(subject: InferencePool) -> str:
    return find_fit(subject, shape_of(), None).message


def test_a_cpu_pool_that_does_not_fit_names_the_memory_limit_to_set_before_what_this_version_cannot_do() -> None:
    small = stored(cpu_pool_manifest(memory="9Gi"))
    verdict, _, ways = fit_message(small).partition(". What would help: ")
    assert not verdict.startswith("does not fit")
    found = re.search(r"set pod\.resources\.limits\.memory to (\w+) \(context ([\d,]+), \d+ slots?\)", ways)
    assert found is not None
    assert "not offered" not in ways[: found.end()]
    larger = fit_message(stored(cpu_pool_manifest(memory=found[1])))
    assert f"give context {found[2]}" in larger


def test_a_gpu_pool_that_does_not_fit_names_the_fields_that_choose_another_device() -> None:
    ways = fit_message(pool(accelerator={"memory": "12Gi", "count": 1})).partition(". What would help: ")[2]
    more, larger, *_ = ways.split("; ")
    assert more.startswith("set accelerator.count to 2 (context ")
    assert " by pod.nodeSelector and tell its size in accelerator.memory (context " in larger


def test_a_smallest_context_above_the_models_names_the_field_to_lower() -> None:
    message = fit_message(pool(context={"max": 1 << 20, "min": 1 << 20}))
    assert re.search(r"help: set context\.min to at most 40960; set model\.kvCacheDtype to Int8 \(context ", message)
    assert re.search(r"; set context\.min to \d+ \(context [\d,]+, ", message)


@pytest.mark.parametrize("memory", ["24Gi", "12Gi"])
def test_a_fit_does_not_repeat_its_reason(memory: str) -> None:
    assert not re.match("(does not )?fits?: ", fit_message(pool(accelerator={"memory": memory})))


def test_nodes_that_the_pool_cannot_use_do_not_count() -> None:
    nodes = (
        Node("a", {"nvidia.com/gpu.memory": "81920", "tier": "big"}, {"nvidia.com/gpu": "8"}),
        Node("b", {"nvidia.com/gpu.memory": "24576"}, {"nvidia.com/gpu": "1"}),
    )
    fit = step(replace(settled(), nodes=nodes), accelerator={}, pod={"nodeSelector": {"tier": "big"}}).fit
    assert fit is not None
    assert fit.fit is not None
    assert fit.fit.memory_bytes == 81920 * 2**20


def test_an_object_of_a_stranger_blocks_everything() -> None:
    steps = step(replace(settled(), strangers=("Service chat",)))
    assert steps.blocked is not None
    assert steps.blocked.is_final
    assert steps.is_satisfied


def test_leftovers_of_a_deleted_pool_are_waited_for() -> None:
    steps = step(Observed(leftovers=("Deployment chat",)))
    assert steps.blocked is not None
    assert not steps.blocked.is_final
    assert steps.requeue_after_seconds <= 1


def live(observed: Observed, kind: str, name: str = "chat") -> dict[str, Any]:
    found = observed.child(kind, name)
    assert found is not None
    return dict(found)


def with_child(observed: Observed, child: dict[str, Any]) -> Observed:
    name, kind = child["metadata"]["name"], child["kind"]
    others = [each for each in observed.children if (each["kind"], each["metadata"]["name"]) != (kind, name)]
    return replace(observed, children=(*others, child))


def test_a_changed_field_of_ours_is_put_back_and_a_strangers_field_is_left() -> None:
    service = live(settled(), "Service")
    mine = {**service, "spec": {**service["spec"], "selector": {}}}
    theirs = {**service, "spec": {**service["spec"], "sessionAffinity": "ClientIP"}}
    assert titles(step(with_child(settled(), mine))) == ["Service chat"]
    assert step(with_child(settled(), theirs)).is_satisfied


def test_a_chat_template_that_changes_is_a_new_config_map_and_the_oldest_goes() -> None:
    observed = settled()
    for number, text in enumerate(("one", "two", "three"), start=2):
        steps = step(observed, model={"uri": "pvc://models/qwen", "chatTemplate": text})
        assert any(title.startswith("ConfigMap chat-chat-") for title in titles(steps))
        assert f"ControllerRevision chat-{number}" in titles(steps)
        observed = carried_out(observed, steps)
    names = {each["metadata"]["name"] for each in observed.children if each["kind"] == "ConfigMap"}
    assert len(names) == 2, "the current template's and the one before"


def test_suspend_takes_every_replica_at_once_and_keeps_the_rest() -> None:
    steps = step(replace(settled(), pods=(pod(),)), suspend=True)
    (deployment,) = steps.apply
    assert deployment["spec"]["replicas"] == 0
    assert not steps.delete


def test_manual_mode_does_what_spec_replicas_says() -> None:
    *_, deployment = step(settled(), scaling={"mode": "Manual"}, replicas=4).apply
    assert deployment["spec"]["replicas"] == 4


@pytest.mark.parametrize(
    ("annotations", "replicas", "expected"),
    [({"tidegate.dev/desired-replicas": "2"}, 1, 2), ({}, 3, 3), ({"tidegate.dev/desired-replicas": "x"}, 3, 3)],
    ids=["the decision stands", "without it the size stands", "nonsense is no decision"],
)
def test_the_size_survives_whatever_is_done_to_the_deployment(
    annotations: dict[str, str], replicas: int, expected: int
) -> None:
    found = live(settled(), "Deployment")
    meddled = {
        **found,
        "metadata": {**found["metadata"], "annotations": annotations},
        "spec": {**found["spec"], "replicas": replicas},
    }
    (deployment,) = step(with_child(settled(), meddled), maxReplicas=4).apply
    assert deployment["spec"]["replicas"] == expected
    assert deployment["metadata"]["annotations"]["tidegate.dev/desired-replicas"] == str(expected)


def test_a_deployment_that_was_deleted_comes_back_with_its_size() -> None:
    subject = pool(maxReplicas=5)
    grown = subject.model_copy(update={"status": subject.status.model_copy(update={"desired_replicas": 3})})
    gone = replace(settled(), children=tuple(each for each in settled().children if each["kind"] != "Deployment"))
    (deployment,) = plan(grown, gone, SETTINGS, NOW).apply
    assert deployment["spec"]["replicas"] == 3


def test_a_deleted_pool_of_another_uid_is_no_owner() -> None:
    (job,) = plan(stored(pool_manifest(), uid="another"), Observed(), SETTINGS, NOW).apply
    assert [owner["uid"] for owner in job["metadata"]["ownerReferences"]] == ["another"]


def test_a_shape_that_cannot_be_read_back_is_inspected_again() -> None:
    observed = settled()
    (stored_model,) = (each for each in observed.children if "model" in each["metadata"]["name"])
    steps = step(with_child(observed, {**stored_model, "data": {"uri": "?"}}))
    assert [title.split()[0] for title in titles(steps)] == ["Job"], "and what is deployed stays"
