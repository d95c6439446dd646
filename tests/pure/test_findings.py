"""The tree of conditions: whatever the world is like, Ready says what the first condition that is not good says."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from pools import NOW, SETTINGS, inspected, pod, pool, settled
from tidegate_operator.api.conditions import BAD_WHEN_TRUE, ConditionType
from tidegate_operator.api.reasons import Reason
from tidegate_operator.decisions.plan import Refusal
from tidegate_operator.decisions.planning import plan
from tidegate_operator.report.findings import Finding, Replicas, find_all
from tidegate_operator.world.observed import Observed, Trouble

CURRENT = plan(pool(), settled(), SETTINGS, NOW).revisions.current
assert CURRENT is not None
HASH = CURRENT.template_hash
CHILDREN = [each for each in ConditionType if each not in ("Ready", "Reconciling", "Stalled")]
LOADING = pod("b", ready_since=None)
WORLDS: dict[str, Observed] = {
    "new": Observed(),
    "no claim": replace(Observed(), is_claim_missing=True),
    "inspected": Observed(inspections=(inspected(),)),
    "a stranger's Service": replace(Observed(), strangers=("Service chat",)),
    "settled": settled(),
    **{
        f"pods {'+'.join(each.name for each in pods) or 'none'} {number}": replace(settled(), pods=pods)
        for number, pods in enumerate(
            (
                (),
                (pod("a", template=HASH),),
                (pod("old", template="older"),),
                (replace(LOADING, template=HASH),),
                (pod("a", template=HASH), replace(LOADING, template=HASH, trouble=Trouble(Reason.OUT_OF_MEMORY, "x"))),
                (pod("old", template="older"), replace(LOADING, template=HASH)),
            )
        )
    },
}
SPECS: dict[str, dict[str, Any]] = {
    "as it was": {},
    "two wanted": {"scaling": {"mode": "Manual"}, "replicas": 2},
    "does not fit": {"accelerator": {"memory": "12Gi", "count": 1}},
    "unknown memory": {"accelerator": {}},
    "a wrong flag": {"engine": {"extraArgs": ["--no-such-flag"]}},
    "suspended": {"suspend": True},
    "another model": {"model": {"uri": "pvc://models/other"}},
    "a picker that cannot be": {"endpointPickerRef": {"name": "epp"}},
}
HARMLESS = {  # to a pool that serves with all it wants; Progressing tells of a replica too many that is in trouble
    "MetricsAvailable", "ScalingLimited", "ResizeAdvised", "Integrated", "Progressing",
}  # fmt: skip
REFUSAL = Refusal("Deployment chat", "spec.template: Invalid value")


def findings(observed: Observed, spec: dict[str, Any], refusals: tuple[Refusal, ...]) -> tuple[Finding, ...]:
    steps = plan(pool(**spec), observed, SETTINGS, NOW)
    return find_all(pool(**spec), steps, refusals, Replicas.of(observed, steps))


@pytest.mark.parametrize("world", WORLDS)
def test_ready_has_the_reason_and_message_of_what_is_not_good(world: str) -> None:
    for spec, refusals in product(SPECS.values(), ((), (REFUSAL,))):
        found = findings(WORLDS[world], spec, refusals)
        ready, by_type = found[0], {each.type: each for each in found}
        assert ready.type == "Ready"
        bad = [each for each in found if each.type in CHILDREN and not each.is_good]
        if ready.status == "True":
            assert {each.type for each in bad} <= HARMLESS
        elif stalled := by_type.get(ConditionType.STALLED):
            assert (ready.reason, ready.message) == (stalled.reason, stalled.message)
        elif ready.reason not in (Reason.SUSPENDED, Reason.RECONCILING):
            causes = {each.reason for each in found if each.type in CHILDREN}
            assert ready.reason in causes, (world, spec, ready)


@pytest.mark.parametrize("world", WORLDS)
def test_a_pool_is_ready_under_way_or_waits_for_a_person_and_never_two_of_these(world: str) -> None:
    for spec, refusals in product(SPECS.values(), ((), (REFUSAL,))):
        states = {each.type for each in findings(WORLDS[world], spec, refusals) if each.status == "True"}
        num_states = len(states & {"Ready", "Reconciling", "Stalled"})
        assert num_states == 1 or (num_states == 0 and "suspend" in spec)


def test_of_the_conditions_that_are_bad_when_true_none_is_the_cause_while_it_is_false() -> None:
    assert Finding(ConditionType.SCALING_LIMITED, "False", Reason.WITHIN_BOUNDS, "").is_good
    assert not Finding(ConditionType.SCALING_LIMITED, "True", Reason.AT_MAXIMUM, "").is_good
    assert not Finding(ConditionType.FITS, "Unknown", Reason.MEMORY_UNKNOWN, "").is_good
    assert ConditionType.READY not in BAD_WHEN_TRUE
