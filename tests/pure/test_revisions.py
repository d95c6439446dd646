"""The frozen template: an operator upgrade changes nothing until the user changes an input."""

from dataclasses import replace
from typing import Any

import pytest

from pools import NOW, SETTINGS, carried_out, load, pool, settled
from tidegate_core.launch import EngineLaunch, RunnerKind
from tidegate_operator.api.status import SizingStatus
from tidegate_operator.decisions.drain_time import drain_seconds
from tidegate_operator.decisions.engine_version import EngineDefaults
from tidegate_operator.decisions.planning import plan
from tidegate_operator.decisions.revisions import inputs_hash, read_revision
from tidegate_operator.decisions.scale import ScaleTiming
from tidegate_operator.errors import BadRevision
from tidegate_operator.labels import TEMPLATE_LABEL
from tidegate_operator.manifests.pod import Runtime
from tidegate_operator.resources import CONTROLLER_REVISION

NEWER = replace(
    SETTINGS,
    engine=EngineDefaults(
        Runtime("engine:2", {"spec": {"hostname": "x"}}), runner=RunnerKind.SIM, drain_token_sha256=("cd" * 32,)
    ),
)


def test_an_upgraded_operator_changes_nothing() -> None:
    assert plan(pool(), settled(), NEWER, NOW).is_satisfied


def test_the_upgrade_arrives_with_the_next_change_of_the_user() -> None:
    changed = pool(context={"max": 2048, "min": 1024})
    steps = plan(changed, settled(), NEWER, NOW)
    deployment = steps.apply[-1]
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == "engine:2"
    launch = EngineLaunch.from_args(container["args"][1:])
    assert (launch.context, launch.runner) == (2048, RunnerKind.SIM)
    assert plan(changed, carried_out(settled(), steps), NEWER, NOW).revisions.current.number == 2


def test_spelling_out_a_default_is_no_change() -> None:
    assert inputs_hash(pool(queue={"maxRequests": 64})) == inputs_hash(pool())
    assert inputs_hash(pool(access={"trustFairnessHeader": False})) == inputs_hash(pool())
    assert inputs_hash(pool(engine={"extraArgs": []})) == inputs_hash(pool())


@pytest.mark.parametrize(
    ("spec", "inputs"),
    [
        ({}, "6dcedb469f"),
        (
            {
                "model": {"uri": "pvc://models/qwen", "servedNames": ["a"], "chatTemplate": "x"},
                "queue": {"maxRequests": 5, "maxWaitSeconds": 9},
                "drain": {"timeoutSeconds": 9},
            },
            "7d3afdac61",
        ),
    ],
    ids=["smallest", "full"],
)
def test_a_pool_stored_by_an_older_operator_keeps_its_hash_so_that_an_upgrade_restarts_nothing(
    spec: dict[str, Any], inputs: str
) -> None:
    assert inputs_hash(pool(**spec)) == inputs, "as before there were keys, 8-bit dtypes and extra arguments"


def test_what_requests_took_lengthens_the_drain_with_the_next_change_and_restarts_nothing() -> None:
    slow = replace(settled(), loads={"a": load(request_p99_seconds=240.0), "b": load()})
    assert plan(pool(), slow, SETTINGS, NOW).is_satisfied
    current = plan(pool(context={"max": 2048, "min": 1024}), slow, SETTINGS, NOW).revisions.current
    assert current is not None
    launch = EngineLaunch.from_args(current.template["spec"]["containers"][0]["args"][1:])
    assert (current.drain_seconds, launch.drain_seconds) == (300, 300)
    assert current.template["spec"]["terminationGracePeriodSeconds"] > 300


@pytest.mark.parametrize(
    ("drain", "p99_seconds", "seconds"),
    [({}, None, 120), ({}, 20.0, 120), ({}, 7680.0, 3600), ({"timeoutSeconds": 5}, 240.0, 5)],
    ids=["nothing seen", "short requests", "endless requests", "the user's word"],
)
def test_the_time_to_drain(drain: dict[str, int], p99_seconds: float | None, seconds: int) -> None:
    assert drain_seconds(pool(drain=drain), [load(request_p99_seconds=p99_seconds)]) == seconds


def test_a_pool_into_which_the_api_server_once_wrote_the_default_drain_is_unchanged() -> None:
    assert inputs_hash(pool(drain={"timeoutSeconds": 120})) == inputs_hash(pool())


def test_a_revision_written_before_a_newer_field_of_sizing_can_be_read() -> None:
    required = {name for name, field in SizingStatus.model_fields.items() if field.is_required()}
    assert required == {
        "fits", "binding_constraint", "memory_bytes", "runtime_bytes", "activation_bytes", "logits_bytes",
        "reserve_bytes", "weight_bytes", "kv_bytes_per_token", "kv_fixed_bytes_per_sequence", "kv_blocks", "context",
        "slots", "tensor_parallel", "resident_bytes",
    }, "a new field needs a default: stored revisions lack it, and one that cannot be read restarts pods"  # fmt: skip


def test_a_revision_survives_the_way_through_the_api_server() -> None:
    (stored,) = (each for each in settled().children if each["metadata"]["name"] == "chat-1")
    revision = read_revision(stored)
    assert revision.number == 1
    assert revision.sizing.slots > 1
    assert {**revision.to_manifest(pool())}["data"] == stored["data"]


@pytest.mark.parametrize(
    "template",
    [
        {},
        {"metadata": None},
        {"metadata": {"labels": {TEMPLATE_LABEL: "x"}}, "spec": {"containers": [{"name": "shell", "image": "shell"}]}},
    ],
    ids=["empty", "null", "of another"],
)
def test_a_revision_that_a_person_made_of_something_else_is_none_of_ours(template: dict[str, Any]) -> None:
    (stored,) = (each for each in settled().children if each["metadata"]["name"] == "chat-1")
    foreign = {**stored, "metadata": {**stored["metadata"], "name": "chat-9"}, "revision": 9}
    foreign["data"] = {**stored["data"], "template": template}
    with pytest.raises(BadRevision, match="ControllerRevision chat-9 is not one of ours"):
        read_revision(foreign)
    meddled = replace(settled(), children=(*settled().children, foreign))
    current = plan(pool(), meddled, SETTINGS, NOW).revisions.current
    assert current is not None
    assert current.name == "chat-1"


def test_the_current_and_the_previous_revision_are_kept() -> None:
    observed = settled()
    for size in (3000, 2900, 2800, 2700):
        changed = pool(context={"max": size, "min": 1024})
        for _ in range(2):
            observed = carried_out(observed, plan(changed, observed, SETTINGS, NOW))
    numbers = sorted(
        each["revision"]
        for each in observed.children
        if each["kind"] == CONTROLLER_REVISION.kind and "model" not in each["metadata"]["name"]
    )
    assert numbers == [4, 5]


def test_a_revision_that_cannot_be_read_is_rendered_anew_under_the_next_number() -> None:
    observed = settled()
    others = tuple(each for each in observed.children if each["metadata"]["name"] != "chat-1")
    (first,) = (each for each in observed.children if each["metadata"]["name"] == "chat-1")
    broken = replace(observed, children=(*others, {**first, "data": {"template": 1}}))
    steps = plan(pool(), broken, SETTINGS, NOW)
    assert steps.revisions.current is not None
    assert steps.revisions.current.number == 2
    deployment = next(each for each in observed.children if each["kind"] == "Deployment")
    template = steps.revisions.current.template
    assert template == deployment["spec"]["template"], "same operator, same inputs: no pod restarts"


def test_timing_is_no_input() -> None:
    assert plan(pool(), settled(), replace(SETTINGS, timing=ScaleTiming(1, 2)), NOW).is_satisfied
