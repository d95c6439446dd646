"""Status by kstatus: which conditions stand, and that nothing moves without a reason."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from pools import NOW, SETTINGS, carried_out, inspected, load, pod, pool, settled
from tidegate_core.samples import History, Memory
from tidegate_core.termination import ExitCode, TerminationMessage
from tidegate_operator.api.conditions import ConditionType
from tidegate_operator.api.reasons import Reason
from tidegate_operator.api.status import InferencePoolStatus
from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.decisions.notes import transition_notes
from tidegate_operator.decisions.plan import Refusal
from tidegate_operator.decisions.planning import plan
from tidegate_operator.report.status import status, status_manifest
from tidegate_operator.world.observed import Observed, Pod, Trouble

CURRENT = plan(pool(), settled(), SETTINGS, NOW).revisions.current
assert CURRENT is not None


def with_pods(*pods: Pod, replicas: int | None = None, **loads: Any) -> Observed:
    """The settled pool with these pods, all of the current template unless they say otherwise."""
    made = tuple(replace(each, template=each.template or CURRENT.template_hash) for each in pods)
    observed = replace(settled(), pods=made, loads=loads)
    children = []
    for each in observed.children:
        if each["kind"] == "Deployment":
            num = len(made) if replicas is None else replicas
            annotations = {**each["metadata"]["annotations"], "tidegate.dev/desired-replicas": str(num)}
            counts = {"observedGeneration": 1, "replicas": len(made), "updatedReplicas": len(made)}
            each = {  # noqa: PLW2901 - the same object, further along
                **each, "status": counts, "spec": {**each["spec"], "replicas": num},
                "metadata": {**each["metadata"], "annotations": annotations},
            }  # fmt: skip
        children.append(each)
    return replace(observed, children=tuple(children))


def after(
    observed: Observed,
    before: InferencePoolStatus | None = None,
    refusals: tuple[Refusal, ...] = (),
    seconds: float = 0,
    **spec: Any,
) -> InferencePoolStatus:
    subject = pool(**spec).model_copy(update={"status": before or InferencePoolStatus()})
    now = NOW + timedelta(seconds=seconds)
    return status(subject, observed, plan(subject, observed, SETTINGS, now), refusals, now)


def conditions(new: InferencePoolStatus) -> dict[str, tuple[str, str]]:
    return {each.type: (each.status, each.reason) for each in new.conditions}


def test_a_new_pool_says_at_once_that_it_is_not_ready() -> None:
    new = after(Observed())
    assert conditions(new) == {
        "Ready": ("False", "Inspecting"),
        "Reconciling": ("True", "Inspecting"),
        "ModelResolved": ("Unknown", "Inspecting"),
        "Available": ("False", "NoReplicaReady"),
    }
    assert new.observed_generation == 1
    assert new.phase == "Inspecting"


def test_a_pool_with_all_its_replicas_is_ready_and_nothing_else() -> None:
    new = after(with_pods(pod()))
    assert conditions(new)["Ready"] == ("True", "AllReplicasReady")
    assert {"Reconciling", "Stalled"}.isdisjoint(conditions(new))
    assert (new.phase, new.ready, new.replicas, new.ready_replicas, new.updated_replicas) == ("Ready", "1/1", 1, 1, 1)
    assert new.model is not None
    assert new.sizing is not None
    assert new.sizing.context == 4096
    assert new.selector == "tidegate.dev/pool=chat,tidegate.dev/role=engine"


@pytest.mark.parametrize(
    ("pods", "replicas", "reason"),
    [
        pytest.param((pod(ready_since=None),), 1, "ReplicasStarting", id="loading"),
        pytest.param((), 1, "Scaling", id="not created yet"),
        pytest.param((pod("a"), pod("b", template="older")), 2, "RollingOut", id="two templates"),
        pytest.param((pod(ready_since=None, trouble=Trouble(Reason.UNSCHEDULABLE, "0/1 nodes")),), 1, "Unschedulable",
                     id="no room"),
        pytest.param((pod(ready_since=None, trouble=Trouble(Reason.OUT_OF_MEMORY, "killed")),), 1, "OutOfMemory",
                     id="killed"),
    ],
)  # fmt: skip
def test_what_keeps_a_pool_from_being_ready_is_its_reason(pods: tuple[Pod, ...], replicas: int, reason: str) -> None:
    new = after(with_pods(*pods, replicas=replicas))
    found = conditions(new)
    assert found["Ready"] == ("False", reason)
    assert found["Reconciling"] == ("True", reason)
    assert found["Progressing"][1] == reason
    assert new.phase == reason


def test_a_pod_that_may_be_waiting_for_its_secret_says_which_and_one_that_runs_does_not() -> None:
    keys = {"access": {"apiKeysSecretRef": {"name": "chat-keys", "key": "api.keys"}}}
    subject = pool(**keys)
    observed = settled(subject)
    current = plan(subject, observed, SETTINGS, NOW).revisions.current
    assert current is not None
    created = pod(template=current.template_hash, ready_since=None, is_running=False)

    def message(*which: Pod) -> str:
        condition = after(replace(observed, pods=which), **keys).condition(ConditionType.PROGRESSING)
        assert condition is not None
        return condition.message

    counted, hint = "0 of 1 replicas are ready", "; pods start once there is a Secret chat-keys with the entry api.keys"
    assert message(created) == counted + hint
    assert message(replace(created, is_running=True)) == counted
    replacing = message(pod("old", template="older"), created)
    assert replacing.startswith("1 of 2 replicas have the current template (Replace: ")
    assert replacing.endswith(hint)


def test_a_draining_replica_does_not_count_and_does_not_unready_the_pool() -> None:
    leaving = pod("b", draining_since=NOW, is_serving=False, ready_since=None)
    new = after(with_pods(pod("a"), leaving, replicas=1))
    assert (new.replicas, new.ready) == (1, "1/1")
    assert conditions(new)["Ready"] == ("True", "AllReplicasReady")


@pytest.mark.parametrize(
    ("observed", "spec", "reason"),
    [
        pytest.param(replace(Observed(), strangers=("Service chat",)), {}, "ChildNotOurs", id="a stranger's object"),
        pytest.param(Observed(inspections=(inspected(
            TerminationMessage(reason="ModelUnsupported", message="m").encode(), ExitCode.MODEL_UNSUPPORTED),)), {},
            "ModelUnsupported", id="unsupported"),
        pytest.param(Observed(inspections=(inspected(),)), {"accelerator": {"memory": "12Gi", "count": 1}},
                     "DoesNotFit", id="does not fit"),
        pytest.param(Observed(inspections=(inspected(),)), {"accelerator": {}}, "MemoryUnknown", id="unknown memory"),
    ],
)  # fmt: skip
def test_what_no_retry_can_heal_is_stalled_and_not_reconciling(
    observed: Observed, spec: dict[str, Any], reason: str
) -> None:
    found = conditions(after(observed, **spec))
    assert found["Stalled"] == ("True", reason)
    assert found["Ready"] == ("False", reason)
    assert "Reconciling" not in found


def test_a_refused_object_is_stalled_with_the_servers_answer() -> None:
    new = after(with_pods(pod()), refusals=(Refusal("Deployment chat", "spec.template: Invalid value"),))
    assert conditions(new)["Stalled"] == ("True", "ApplyFailed")
    assert "Deployment chat: spec.template: Invalid value" in new.conditions[0].message


def test_a_blocked_pool_keeps_what_is_known_of_it() -> None:
    before = after(with_pods(pod("a"), a=load()))
    blocked = after(replace(with_pods(pod("a")), strangers=("Service chat",)), before)
    assert (blocked.model, blocked.sizing) == (before.model, before.sizing)
    assert blocked.ready == "1/1"


def test_a_suspended_pool_is_neither_ready_nor_busy() -> None:
    found = conditions(after(with_pods(replicas=0), suspend=True))
    assert found["Ready"] == ("False", "Suspended")
    assert {"Reconciling", "Stalled"}.isdisjoint(found)


def test_a_spec_that_does_not_fit_leaves_the_sizing_at_what_still_serves() -> None:
    serving = after(with_pods(pod(), **{"chat-a": load()}))
    new = after(with_pods(pod(), **{"chat-a": load()}), serving, accelerator={"memory": "12Gi", "count": 1})
    assert conditions(new)["Available"][0] == "True"
    assert conditions(new)["Stalled"] == ("True", "DoesNotFit")
    assert conditions(new)["Progressing"] == ("False", "DoesNotFit")
    assert new.sizing == serving.sizing
    assert new.ready == "1/1"


def test_a_spec_that_does_not_fit_names_the_template_that_goes_on_serving() -> None:
    new = after(
        with_pods(pod("a"), pod("b")),
        accelerator={"memory": "12Gi", "count": 1},
        replicas=2,
        scaling={"mode": "Manual"},
    )
    fits, progressing = new.condition(ConditionType.FITS), new.condition(ConditionType.PROGRESSING)
    assert fits is not None
    slots = CURRENT.sizing.slots
    assert fits.message.endswith(
        f"; 2 replicas go on serving with the last template that fitted (context 4,096, {slots} slots)"
    )
    assert new.conditions[0].message == fits.message
    assert progressing is not None
    assert progressing.message == "the change was not rolled out"


def test_a_spec_that_does_not_fit_and_never_did_shows_its_own_numbers() -> None:
    new = after(Observed(inspections=(inspected(),)), accelerator={"memory": "12Gi", "count": 1})
    fits = new.condition(ConditionType.FITS)
    assert fits is not None
    assert "go on serving" not in fits.message
    assert new.sizing is not None
    assert not new.sizing.fits


@pytest.mark.parametrize(
    ("spec", "reason"),
    [({"accelerator": {}}, "MemoryUnknown"), ({"model": {"uri": "pvc://models/other"}}, "ClaimNotFound")],
)
def test_a_change_that_waits_for_a_person_is_not_called_up_to_date(spec: dict[str, Any], reason: str) -> None:
    new = after(replace(with_pods(pod()), is_claim_missing=reason == "ClaimNotFound"), **spec)
    assert conditions(new)["Progressing"] == ("False", reason)
    assert new.sizing is not None
    assert new.sizing.context == 4096


def test_the_same_world_gives_the_same_status_however_much_later() -> None:
    observed = with_pods(pod(), chat=load())
    first = after(observed)
    assert after(observed, first, seconds=3600) == first


def test_live_figures_do_not_move_the_status() -> None:
    quiet = with_pods(pod("a"), a=load())
    first = after(quiet)
    for running in range(1, 6):
        busy = replace(quiet, loads={"a": load(running=running, arrivals=running * 100, kv_blocks_used=running)})
        assert after(busy, first, seconds=running) == first


def test_a_silent_engine_is_named_with_its_answer_and_moves_the_status_once() -> None:
    observed = replace(with_pods(pod("a")), failures={"a": "GET /load: HTTP 500"})
    first = after(observed)
    metrics = first.condition(ConditionType.METRICS_AVAILABLE)
    assert metrics is not None
    assert metrics.reason == "MetricsStale"
    assert metrics.message == (
        "a: GET /load: HTTP 500 (1 of 1 ready replicas does not report); the pool keeps its size; see kubectl logs a"
    )
    for seconds in range(5, 60, 5):
        size = plan(pool(), observed, SETTINGS, NOW + timedelta(seconds=seconds)).size
        assert size is not None
        observed = replace(observed, history=size.history)
        assert after(observed, first, seconds=seconds) == first


def test_a_condition_keeps_its_time_until_its_status_flips() -> None:
    first = after(with_pods(pod(ready_since=None)))
    trouble = Trouble(Reason.UNSCHEDULABLE, "0/1 nodes")
    second = after(with_pods(pod(ready_since=None, trouble=trouble)), first, seconds=60)
    third = after(with_pods(pod()), second, seconds=120)

    def times(kind: str) -> list[object]:
        return [found.last_transition_time - NOW for each in (first, second, third) if (found := each.condition(kind))]

    assert times("Ready") == [timedelta(0), timedelta(0), timedelta(seconds=120)]
    assert times("Progressing") == [timedelta(0), timedelta(seconds=60), timedelta(seconds=120)]


def test_a_lost_load_report_does_not_take_the_measured_blocks_away() -> None:
    first = after(with_pods(pod("a"), a=load()))
    assert first.sizing is not None
    assert first.sizing.measured_kv_blocks == 500
    assert after(with_pods(pod("a")), first).sizing == first.sizing


def test_the_measured_blocks_of_an_older_template_do_not_stand_beside_a_newer_ones() -> None:
    first = after(with_pods(pod("a"), a=load()))
    between = after(with_pods(pod("a", template="older"), a=load()), first)
    assert between.sizing is not None
    assert between.sizing.measured_kv_blocks is None
    starting = after(with_pods(pod("a", template="older"), pod("b", ready_since=None), a=load()), between)
    assert starting.sizing == between.sizing
    reported = after(with_pods(pod("a", template="older"), pod("b"), a=load(), b=load()), starting)
    assert reported.sizing is not None
    assert reported.sizing.measured_kv_blocks == 500


def test_a_scaling_decision_is_remembered_with_its_numbers_newest_first_and_ten_of_them() -> None:
    before = None
    for seconds in range(12):
        alternating = "Manual"
        size = 2 + seconds % 2
        observed = with_pods(*(pod(f"p{number}") for number in range(5 - size)))
        before = after(observed, before, seconds=seconds, scaling={"mode": alternating}, replicas=size)
    assert before is not None
    assert len(before.scaling_history) == 10
    assert before.scaling_history[0].time - NOW == timedelta(seconds=11)
    assert (before.scaling_history[0].from_, before.scaling_history[0].to) == (2, 3)
    assert before.scaling_history[0].reason == "spec.replicas is 3"


def test_the_scalers_memory_is_written_with_its_decisions_only() -> None:
    history = History(Memory(desired=1, last_scale_up=NOW.timestamp() - 500, panic_until=NOW.timestamp() + 9))
    observed = replace(with_pods(pod("a"), a=load()), history=history)
    assert after(observed, maxReplicas=3).scaler is None
    busy = replace(observed, loads={"a": load(waiting=20, running=8, eta_seconds=60)})
    new = after(busy, maxReplicas=3)
    assert new.desired_replicas > 1
    assert new.scaler is not None
    assert new.scaler.last_scale_up == NOW


def test_status_survives_the_way_through_its_own_schema() -> None:
    new = after(with_pods(pod("a"), a=load()))
    manifest = status_manifest(pool(), new)
    read = InferencePool.model_validate({**pool().to_wire(), "status": manifest["status"]})
    assert read.status == new


def test_events_tell_of_transitions_and_not_of_states() -> None:
    fitting = after(settled())
    stalled = after(settled(), fitting, accelerator={"memory": "12Gi", "count": 1})
    first = transition_notes(fitting, stalled)
    assert [(note.reason, note.kind) for note in first] == [("DoesNotFit", "Warning")]
    assert transition_notes(stalled, stalled) == ()
    ready = after(with_pods(pod()), fitting)
    assert ("AllReplicasReady", "Normal") in {(note.reason, note.kind) for note in transition_notes(fitting, ready)}


def test_carrying_out_the_plan_brings_the_pool_from_new_to_serving() -> None:
    observed = Observed(inspections=(inspected(),))
    observed = carried_out(observed, plan(pool(), observed, SETTINGS, NOW))
    assert conditions(after(observed))["Progressing"][1] == "Scaling"


@pytest.mark.parametrize(
    ("words", "reason"),
    [("pods is forbidden: exceeded quota", "QuotaExceeded"), ("no PriorityClass was found", "PodsRefused")],
)
def test_pods_that_cannot_be_created_are_explained_in_the_api_servers_words(words: str, reason: str) -> None:
    observed = with_pods(replicas=1)
    (deployment,) = (each for each in observed.children if each["kind"] == "Deployment")
    failure = {"type": "ReplicaFailure", "status": "True", "message": words}
    refused = {**deployment, "status": {**deployment["status"], "conditions": [failure]}}
    others = tuple(each for each in observed.children if each["kind"] != "Deployment")
    progressing = after(replace(observed, children=(*others, refused))).condition(ConditionType.PROGRESSING)
    assert progressing is not None
    assert (progressing.reason, progressing.message) == (reason, words)
