"""Autoscalers, endpoint pickers and monitors of others: who disturbs a pool, and what is made for them."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from pools import NOW, SETTINGS, UID, pool, settled
from tidegate_operator.api.reasons import Reason
from tidegate_operator.apply import apply
from tidegate_operator.decisions.integration import NO_MONITORING, MonitoringDefaults, integrate
from tidegate_operator.decisions.plan import Plan
from tidegate_operator.decisions.planning import plan
from tidegate_operator.errors import NotFound
from tidegate_operator.labels import ENGINE_ROLE, SERVING_LABEL, labels
from tidegate_operator.report.status import status
from tidegate_operator.resources import GIE_POOL, OPTIONAL, POD_MONITOR, Manifest, Resource
from tidegate_operator.world.neighbours import (
    NOBODY,
    Neighbourhood,
    foreign_pickers,
    foreign_scalers,
    read_picker,
    read_scaler,
)

POOL_TARGET = {"apiVersion": "tidegate.dev/v1alpha1", "kind": "InferencePool", "name": "chat"}
DEPLOYMENT_TARGET = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "chat"}
MANUAL = {"scaling": {"mode": "Manual"}}
PICKER = {"endpointPickerRef": {"name": "chat-epp"}}
MONITORS = MonitoringDefaults(has_pod_monitors=True, labels={"release": "prometheus"})
INSTALLED = frozenset(OPTIONAL)


def scaler(target: dict[str, str], kind: str = "HorizontalPodAutoscaler", name: str = "h", **metadata: Any) -> Manifest:
    known = {"name": name, "namespace": "team", **metadata}
    return {"kind": kind, "metadata": known, "spec": {"scaleTargetRef": target}}


def named(*items: Manifest, **spec: Any) -> str:
    return foreign_scalers(pool(**spec), tuple(found for item in items if (found := read_scaler(item))))


def picker(selector: dict[str, str], **metadata: Any) -> Manifest:
    known = {"name": "p", "namespace": "team", **metadata}
    return {"kind": "InferencePool", "metadata": known, "spec": {"selector": {"matchLabels": selector}}}


def misrouted(selector: dict[str, str], **metadata: Any) -> str:
    found = read_picker(picker(selector, **metadata))
    return foreign_pickers(pool(pod={"labels": {"app": "chat"}}), (found,) if found else ())


def test_an_autoscaler_of_our_deployment_is_named_with_the_target_it_should_have() -> None:
    for spec in ({}, MANUAL):
        said = named(scaler(DEPLOYMENT_TARGET), **spec)
        assert said.startswith("HorizontalPodAutoscaler h: target Deployment chat belongs to the operator; set")
        assert "{apiVersion: tidegate.dev/v1alpha1, kind: InferencePool, name: chat}" in said


def test_an_autoscaler_of_the_pool_is_welcome_in_manual_mode_and_named_in_auto_mode() -> None:
    assert named(scaler(POOL_TARGET), **MANUAL) == ""
    assert "set spec.scaling.mode: Manual, or delete it" in named(scaler(POOL_TARGET))


def test_two_autoscalers_of_one_pool_are_both_named() -> None:
    said = named(scaler(POOL_TARGET), scaler(POOL_TARGET, "ScaledObject", "k"), **MANUAL)
    assert said == (
        "HorizontalPodAutoscaler h, ScaledObject k: each sets spec.replicas, so the size goes back and forth; "
        "keep one of them"
    )


def test_the_autoscaler_that_keda_makes_is_its_scaled_object() -> None:
    made = scaler(POOL_TARGET, name="keda-hpa-k", ownerReferences=[{"kind": "ScaledObject", "uid": "k"}])
    assert named(made, scaler(POOL_TARGET, "ScaledObject", "k"), **MANUAL) == ""
    assert named(scaler({"name": "chat"}, "ScaledObject", "k")).startswith("ScaledObject k: target Deployment chat")


@pytest.mark.parametrize(
    "item",
    [
        scaler(POOL_TARGET, namespace="other"),
        scaler({**POOL_TARGET, "name": "another"}),
        scaler({**POOL_TARGET, "apiVersion": "inference.networking.k8s.io/v1"}),
        scaler({**DEPLOYMENT_TARGET, "kind": "StatefulSet"}),
    ],
)
def test_an_autoscaler_of_something_else_is_nobodys_business(item: Manifest) -> None:
    assert named(item) == ""


def test_a_picker_that_sees_draining_replicas_is_told_to_look_at_the_serving_label() -> None:
    for selector in ({"tidegate.dev/pool": "chat"}, {"app": "chat"}, {}):
        said = misrouted(selector)
        assert said.startswith("inferencepools.inference.networking.k8s.io p: selects this pool's pods")
        assert 'add tidegate.dev/serving: "true" to its spec.selector.matchLabels' in said


def test_a_picker_that_heeds_the_label_selects_others_or_is_our_own_is_welcome() -> None:
    assert misrouted({"tidegate.dev/pool": "chat", SERVING_LABEL: "true"}) == ""
    assert misrouted({"tidegate.dev/pool": "another"}) == ""
    assert misrouted({"tidegate.dev/pool": "chat"}, namespace="other") == ""
    assert misrouted({"app": "chat"}, ownerReferences=[{"controller": True, "uid": UID}]) == ""


def test_nothing_is_made_for_neighbours_unless_somebody_asks() -> None:
    found = integrate(pool(), Neighbourhood(installed=INSTALLED), NO_MONITORING)
    assert (found.apply, found.delete, found.trouble, found.is_asked_for) == ((), (), None, False)


def test_a_pool_with_a_picker_gets_an_endpoint_pool_of_its_serving_replicas() -> None:
    (made,) = integrate(pool(**PICKER), Neighbourhood(installed=INSTALLED), NO_MONITORING).apply
    assert (made["apiVersion"], made["kind"], made["metadata"]["name"]) == (
        "inference.networking.k8s.io/v1", "InferencePool", "chat",
    )  # fmt: skip
    assert made["spec"] == {
        "selector": {"matchLabels": {
            "tidegate.dev/pool": "chat", "tidegate.dev/role": "engine", "tidegate.dev/serving": "true",
        }},
        "targetPorts": [{"number": 8000}],
        "endpointPickerRef": {"name": "chat-epp", "port": {"number": 9002}, "failureMode": "FailOpen"},
    }  # fmt: skip
    serving = {**labels(pool(), ENGINE_ROLE), SERVING_LABEL: "true"}
    assert made["spec"]["selector"]["matchLabels"].items() <= serving.items()


def test_a_monitor_scrapes_the_admin_port_under_the_pools_name() -> None:
    (made,) = integrate(pool(), Neighbourhood(installed=INSTALLED), MONITORS).apply
    assert made["metadata"]["labels"]["release"] == "prometheus"
    (endpoint,) = made["spec"]["podMetricsEndpoints"]
    assert (endpoint["port"], endpoint["path"]) == ("admin", "/metrics")
    assert endpoint["relabelings"] == [{"targetLabel": "pool", "replacement": "chat"}]


def live(item: Manifest) -> Manifest:
    return {**item, "metadata": {**item["metadata"], "uid": "live-1", "resourceVersion": "7"}}


def test_what_is_there_is_left_alone_what_drifted_is_put_right_and_what_nobody_wants_goes() -> None:
    (made,) = integrate(pool(), Neighbourhood(installed=INSTALLED), MONITORS).apply
    there = Neighbourhood(installed=INSTALLED, optional=(live(made),))
    assert integrate(pool(), there, MONITORS).apply == ()
    edited = {**live(made), "spec": {**made["spec"], "podMetricsEndpoints": []}}
    assert integrate(pool(), replace(there, optional=(edited,)), MONITORS).apply == (made,)
    assert integrate(pool(), there, NO_MONITORING).delete == (live(made),)


def test_an_object_of_somebody_else_is_neither_taken_over_nor_removed() -> None:
    theirs = live({"apiVersion": GIE_POOL.api_version, "kind": GIE_POOL.kind, "metadata": {"name": "chat"}, "spec": {}})
    around = Neighbourhood(installed=INSTALLED, optional=(theirs,))
    found = integrate(pool(**PICKER), around, NO_MONITORING)
    assert (found.apply, found.delete) == ((), ())
    assert found.trouble == (
        Reason.CHILD_NOT_OURS,
        "not controlled by this pool: inferencepools.inference.networking.k8s.io chat; rename or delete it",
    )


def test_an_api_that_is_not_installed_is_said_and_stops_nothing() -> None:
    settings = replace(SETTINGS, monitoring=MONITORS)
    steps = plan(pool(), settled(), settings, NOW)
    assert steps.size is not None
    assert POD_MONITOR.kind not in {each["kind"] for each in steps.apply}
    new = status(pool(), settled(), steps, (), NOW)
    (found,) = (each for each in new.conditions if each.type == "Integrated")
    assert (found.status, found.reason) == ("False", "ApiNotInstalled")
    assert found.message.startswith("podmonitors.monitoring.coreos.com: not installed in this cluster")
    assert "Integrated" not in {each.type for each in status(pool(), settled(), plan(pool(), settled(), SETTINGS, NOW),
                                                              (), NOW).conditions}  # fmt: skip


def test_the_conditions_name_who_disturbs_and_a_pool_with_all_it_asked_for_is_integrated() -> None:
    foreign = read_scaler(scaler(DEPLOYMENT_TARGET))
    assert foreign is not None
    (made,) = integrate(pool(**PICKER), Neighbourhood(installed=INSTALLED), NO_MONITORING).apply
    observed = replace(
        settled(), around=replace(NOBODY, scalers=(foreign,), installed=INSTALLED, optional=(live(made),))
    )
    new = status(pool(**PICKER), observed, plan(pool(**PICKER), observed, SETTINGS, NOW), (), NOW)
    found = {each.type: each for each in new.conditions}
    assert (found["ScalingLimited"].status, found["ScalingLimited"].reason) == ("True", "ForeignScaler")
    assert "HorizontalPodAutoscaler h" in found["ScalingLimited"].message
    assert (found["Integrated"].status, found["Integrated"].reason) == ("True", "Integrated")


class RefusingKube:
    """An API server that knows no such path."""

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Manifest | None:
        return None

    async def apply(self, manifest: Manifest, *, is_rehearsal: bool = False) -> Manifest:
        raise NotFound(f"{manifest['kind']}: not found", 404)


def test_an_object_for_others_that_is_refused_leaves_the_pool_as_good_as_it_is() -> None:
    (monitor,) = integrate(pool(), Neighbourhood(installed=INSTALLED), MONITORS).apply
    refusals = asyncio.run(apply(RefusingKube(), None, Plan("team", apply=(monitor,))))  # type: ignore[arg-type]
    assert [(each.title, each.is_optional) for each in refusals] == [("PodMonitor chat", True)]
    settings = replace(SETTINGS, monitoring=MONITORS)
    observed = replace(settled(), around=replace(NOBODY, installed=INSTALLED))
    new = status(pool(), observed, plan(pool(), observed, settings, NOW), refusals, NOW)
    found = {each.type: each for each in new.conditions}
    assert (found["Integrated"].status, found["Integrated"].reason) == ("False", "ApplyFailed")
    assert "Stalled" not in found
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "chat", "namespace": "team"}}
    with pytest.raises(NotFound):
        asyncio.run(apply(RefusingKube(), None, Plan("team", apply=(service,))))  # type: ignore[arg-type]
