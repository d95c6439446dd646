"""What GitOps tools make of a pool's life: Flux by kstatus, Argo CD by the Lua that we ship, over our own statuses."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import lupa
import pytest

from kstatus import kstatus
from pools import NOW, SETTINGS, inspected, pod, pool, settled
from tidegate_operator.api.reasons import Reason
from tidegate_operator.decisions.plan import Refusal
from tidegate_operator.decisions.planning import plan
from tidegate_operator.report.status import status
from tidegate_operator.world.observed import Observed, Pod, Trouble

HEALTH = Path(__file__).parents[2] / "docs/argocd/health.lua"
CURRENT = plan(pool(), settled(), SETTINGS, NOW).revisions.current
assert CURRENT is not None


def world(*pods: Pod) -> Observed:
    """The pods' template is the current one unless they say otherwise; the Deployment is settled."""
    made = tuple(replace(each, template=each.template or CURRENT.template_hash) for each in pods)
    return replace(settled(), pods=made)


def seen(observed: Observed, refusals: tuple[Refusal, ...] = (), **spec: Any) -> dict[str, Any]:
    """The pool after a reconcile, as the API server would show it."""
    subject = pool(**spec)
    new = status(subject, observed, plan(subject, observed, SETTINGS, NOW), refusals, NOW)
    metadata = {"name": "chat", "namespace": "team", "generation": 1}
    return {"metadata": metadata, "spec": subject.spec.to_wire(), "status": new.to_wire()}


STARTING = pod(ready_since=None)
TROUBLE = Trouble(Reason.UNSCHEDULABLE, "0/1 nodes are available")
MANUAL = {"scaling": {"mode": "Manual"}}
LIFE: dict[str, tuple[dict[str, Any], str, str]] = {
    "the model is being read": (seen(Observed()), "InProgress", "Progressing"),
    "no pod yet": (seen(settled()), "InProgress", "Progressing"),
    "a pod that loads": (seen(world(STARTING)), "InProgress", "Progressing"),
    "a pod that finds no room": (seen(world(replace(STARTING, trouble=TROUBLE))), "InProgress", "Progressing"),
    "serving": (seen(world(pod())), "Current", "Healthy"),
    "one of two serves": (
        seen(world(pod("a"), replace(STARTING, name="b")), replicas=2, **MANUAL), "InProgress", "Progressing",
    ),
    "rolling out": (seen(world(pod("a", template="older"))), "InProgress", "Progressing"),
    "does not fit, the last one serves": (
        seen(world(pod()), accelerator={"memory": "12Gi", "count": 1}), "Failed", "Degraded",
    ),
    "refused by the API server": (
        seen(world(pod()), (Refusal("Deployment chat", "spec.template: Invalid value"),)), "Failed", "Degraded",
    ),
    "never fitted": (
        seen(Observed(inspections=(inspected(),)), accelerator={"memory": "12Gi", "count": 1}), "Failed", "Degraded",
    ),
    "suspended": (seen(settled(), suspend=True), "InProgress", "Suspended"),
}  # fmt: skip


def argo_health() -> Callable[[dict[str, Any]], dict[str, str]]:
    """The Lua as Argo CD runs it: `obj` is the object, its answer a table."""
    lua = lupa.LuaRuntime(unpack_returned_tuples=True)

    def as_table(value: Any) -> Any:
        if isinstance(value, dict):
            return lua.table_from({key: as_table(each) for key, each in value.items()})
        return lua.table_from([as_table(each) for each in value]) if isinstance(value, list) else value

    def health(item: dict[str, Any]) -> dict[str, str]:
        lua.globals().obj = as_table(item)
        return dict(lua.execute(HEALTH.read_text()))

    return health


@pytest.mark.parametrize("stage", LIFE)
def test_flux_waits_until_every_replica_serves_and_gives_up_only_where_a_person_is_needed(stage: str) -> None:
    item, expected, _ = LIFE[stage]
    assert kstatus(item) == expected


@pytest.mark.parametrize("stage", LIFE)
def test_argo_cd_sees_progress_health_degradation_and_suspension(stage: str) -> None:
    item, _, expected = LIFE[stage]
    health = argo_health()(item)
    assert health["status"] == expected
    assert health["message"], "it says why"


def test_argo_cd_believes_no_status_of_an_older_generation_and_none_at_all() -> None:
    item, _, _ = LIFE["serving"]
    health = argo_health()
    assert health({**item, "metadata": {**item["metadata"], "generation": 2}})["status"] == "Progressing"
    assert health({"metadata": item["metadata"]})["status"] == "Progressing"


def test_flux_believes_no_status_of_an_older_generation() -> None:
    item, _, _ = LIFE["serving"]
    assert kstatus({**item, "metadata": {**item["metadata"], "generation": 2}}) == "InProgress"
    assert kstatus({**item, "metadata": {**item["metadata"], "deletionTimestamp": "now"}}) == "Terminating"


def test_the_operator_writes_nothing_that_git_holds() -> None:
    """A tool that applies the same manifest again finds no difference: status is all that the operator owns."""
    subject = pool()
    steps = plan(subject, settled(), SETTINGS, NOW)
    assert "InferencePool" not in {each["kind"] for each in (*steps.apply, *steps.delete)}
