"""Closed-loop sizing: engines measure, status shows it beside the plan, the user's next template counts it in."""

from dataclasses import replace
from typing import Any

from pools import IDLE, NOW, SETTINGS, inspected, pod, pool, pool_manifest, settled, stored
from shapes import shape_of
from tidegate_operator.api.status import EngineStatus, InferencePoolStatus, LearnedSizing, SizingStatus
from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.decisions.plan import Plan
from tidegate_operator.decisions.planning import plan
from tidegate_operator.decisions.revisions import read_revision
from tidegate_operator.report.status import status
from tidegate_operator.sizing.experience import learn
from tidegate_operator.world.observed import Observed

GIB = 2**30
ENGINE = EngineStatus(image="engine:1")


def reporting(observed: Observed, loaded_bytes: int) -> Observed:
    """One engine of the newest template that has measured so much."""
    revisions = [read_revision(each) for each in observed.children if each.get("data", {}).get("template")]
    template = max(revisions, key=lambda each: each.number).template_hash
    sizing = IDLE.sizing.model_copy(update={"loaded_bytes": loaded_bytes})
    return replace(
        observed,
        pods=(pod(template=template),),
        loads={"chat-a": IDLE.model_copy(update={"sizing": sizing})},
    )


def look(subject: InferencePool, observed: Observed) -> InferencePoolStatus:
    steps = plan(subject, observed, SETTINGS, NOW)
    return status(subject, observed, steps, (), NOW)


def remembering(before: InferencePoolStatus, **spec: Any) -> InferencePool:
    return stored({**pool_manifest(**spec), "status": before.to_wire()})


def sizing_of(before: InferencePoolStatus) -> SizingStatus:
    assert before.sizing is not None
    return before.sizing


def deployed(steps: Plan) -> SizingStatus:
    assert steps.revisions.current is not None
    return steps.revisions.current.sizing


def test_what_engines_measured_stands_beside_the_estimate_and_is_learned() -> None:
    planned = sizing_of(look(pool(), settled()))
    estimated = planned.runtime_bytes + planned.weight_bytes
    seen = look(pool(), reporting(settled(), estimated * 110 // 100))
    assert sizing_of(seen).measured_loaded_bytes == estimated * 110 // 100
    (learned,) = seen.learned_sizing
    assert learned == LearnedSizing(
        architecture="qwen3", dtype="bf16", accelerator="nvidia.com/gpu", engine="engine:1", loaded_percent=110
    )


def test_what_was_learned_rolls_nothing_and_enters_the_next_template_that_the_user_causes() -> None:
    planned = sizing_of(look(pool(), settled()))
    observed = reporting(settled(), (planned.runtime_bytes + planned.weight_bytes) * 110 // 100)
    learned = look(pool(), observed)
    same = remembering(learned)
    steps = plan(same, observed, SETTINGS, NOW)
    assert "ControllerRevision" not in {each["kind"] for each in steps.apply}
    assert look(same, observed) == learned, "and so does the status: nothing is written"
    assert steps.fit is not None
    assert steps.fit.fit is not None
    assert steps.fit.fit.kv_blocks == planned.kv_blocks, "Fits is about the template that is there"

    changed = remembering(learned, drain={"timeoutSeconds": 9})
    rolled = deployed(plan(changed, replace(observed, inspections=(inspected(),)), SETTINGS, NOW))
    assert rolled.kv_blocks < planned.kv_blocks
    assert rolled.basis is not None
    assert rolled.basis.loaded_percent == 110
    assert rolled.runtime_bytes + rolled.weight_bytes == (planned.runtime_bytes + planned.weight_bytes) * 110 // 100


def test_a_template_that_counts_it_in_is_compared_with_the_bare_estimate() -> None:
    planned = sizing_of(look(pool(), settled()))
    assert planned.basis is not None
    estimated = planned.runtime_bytes + planned.weight_bytes
    known = look(pool(), reporting(settled(), estimated * 110 // 100)).learned_sizing
    counted_in = planned.model_copy(
        update={
            "basis": planned.basis.model_copy(update={"loaded_percent": 110}),
            "runtime_bytes": planned.runtime_bytes + estimated // 10,
            "measured_loaded_bytes": estimated * 110 // 100,
        }
    )
    assert learn(known, counted_in, ENGINE) == known, "110 % again, not 121 %"


def test_another_model_accelerator_or_engine_starts_from_the_estimate() -> None:
    known = LearnedSizing(
        architecture="qwen3", dtype="bf16", accelerator="nvidia.com/gpu", engine="engine:1", loaded_percent=110
    )
    for other in ({"architecture": "llama"}, {"dtype": "int8"}, {"accelerator": "NVIDIA-L4"}, {"engine": "engine:2"}):
        before = InferencePoolStatus(learned_sizing=(known.model_copy(update=other),))
        observed = replace(Observed(), inspections=(inspected(shape_of().to_json()),))
        basis = deployed(plan(remembering(before), observed, SETTINGS, NOW)).basis
        assert basis is not None
        assert basis.loaded_percent == 100, other


def test_a_restart_that_measures_about_the_same_writes_nothing() -> None:
    planned = sizing_of(look(pool(), settled()))
    estimated = planned.runtime_bytes + planned.weight_bytes
    first = look(pool(), reporting(settled(), estimated * 110 // 100))
    again = look(remembering(first), reporting(settled(), estimated * 111 // 100))
    assert again == first
    silent = look(remembering(first), replace(reporting(settled(), 0), loads={}))
    assert sizing_of(silent).measured_loaded_bytes == sizing_of(first).measured_loaded_bytes


def measured(accelerator: str, loaded_bytes: int) -> SizingStatus:
    planned = sizing_of(look(pool(), settled()))
    assert planned.basis is not None
    basis = planned.basis.model_copy(update={"accelerator": accelerator})
    return planned.model_copy(update={"basis": basis, "measured_loaded_bytes": loaded_bytes})


def test_on_cpu_memory_that_is_not_there_yet_still_comes_so_less_teaches_nothing() -> None:
    assert learn((), measured("cpu", 8 * GIB), ENGINE) == ()
    (on_gpu,) = learn((), measured("NVIDIA-L4", 8 * GIB), ENGINE)
    assert on_gpu.loaded_percent < 100


def test_a_nonsensical_figure_is_bounded_and_what_is_remembered_too() -> None:
    known: tuple[LearnedSizing, ...] = ()
    for number in range(12):
        known = learn(known, measured("NVIDIA-L4", 2**50), EngineStatus(image=f"engine:{number}"))
    assert len(known) == 8
    assert known[0].engine == "engine:11"
    assert {each.loaded_percent for each in known} == {200}


def test_a_revision_of_an_older_operator_teaches_nothing() -> None:
    old = measured("NVIDIA-L4", 30 * GIB).model_copy(update={"basis": None})
    assert learn((), old, ENGINE) == ()
