"""Monitors, rules, dashboard and prices of the chart: absent unless asked for, and whole when they are there."""

import json
from pathlib import Path
from typing import Any

import yaml

from e2e.installation.chart import Manifest, render_chart
from tidegate_operator.world.prices import read_prices

FILES = Path(__file__).parents[2] / "charts/tidegate/files"
MONITORING = {"podMonitors": True, "rules": True, "dashboard": True, "labels": {"release": "prometheus"}}


def by_kind(values: dict[str, Any] | None = None) -> dict[str, list[Manifest]]:
    found: dict[str, list[Manifest]] = {}
    for manifest in render_chart(values):
        found.setdefault(manifest["kind"], []).append(manifest)
    return found


def settings(kinds: dict[str, list[Manifest]]) -> dict[str, str]:
    (deployment,) = kinds["Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return {each["name"]: each.get("value", "") for each in container["env"]}


def test_by_default_nothing_needs_an_api_that_may_not_be_installed() -> None:
    kinds = by_kind()
    assert not {"PodMonitor", "PrometheusRule", "ConfigMap"} & kinds.keys()
    assert "TIDEGATE_MONITORING__POD_MONITORS" not in settings(kinds)


def test_what_is_asked_for_carries_the_labels_that_a_prometheus_looks_for() -> None:
    kinds = by_kind({"monitoring": MONITORING, "networkPolicy": {"enabled": False}})
    found = [*kinds["PodMonitor"], *kinds["PrometheusRule"], *kinds["ConfigMap"]]
    assert len(found) == 3
    assert {each["metadata"]["labels"]["release"] for each in found} == {"prometheus"}
    assert settings(kinds)["TIDEGATE_MONITORING__POD_MONITORS"] == "true"
    assert json.loads(settings(kinds)["TIDEGATE_MONITORING__LABELS"]) == {"release": "prometheus"}


def test_the_operators_monitor_selects_its_pods_and_keeps_the_pools_labels() -> None:
    kinds = by_kind({"monitoring": MONITORING, "networkPolicy": {"enabled": False}})
    (monitor,), (deployment,) = kinds["PodMonitor"], kinds["Deployment"]
    template = deployment["spec"]["template"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["honorLabels"] is True
    assert endpoint["port"] in {port["name"] for port in template["spec"]["containers"][0]["ports"]}


def test_rules_and_dashboard_arrive_as_they_were_tested() -> None:
    kinds = by_kind({"monitoring": MONITORING, "networkPolicy": {"enabled": False}})
    assert kinds["PrometheusRule"][0]["spec"] == yaml.safe_load((FILES / "alerts.yaml").read_text())
    (dashboard,) = kinds["ConfigMap"]
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(dashboard["data"]["tidegate.json"]) == json.loads((FILES / "dashboard.json").read_text())


def test_prices_reach_the_operator_and_are_optional() -> None:
    kinds = by_kind({"prices": {"perHour": {"nvidia.com/gpu": "2.50"}}})
    (prices,) = kinds["ConfigMap"]
    assert str(read_prices(prices["data"]["prices.yaml"]).per_hour["nvidia.com/gpu"]) == "2.50"
    for values, name in (({}, "tidegate-prices"), ({"prices": {"configMap": "mine"}}, "mine")):
        kinds = by_kind(values)
        spec = kinds["Deployment"][0]["spec"]["template"]["spec"]
        (volume,) = (each for each in spec["volumes"] if each["name"] == "prices")
        assert volume["configMap"] == {"name": name, "optional": True}
        (mount,) = (each for each in spec["containers"][0]["volumeMounts"] if each["name"] == "prices")
        assert settings(kinds)["TIDEGATE_PRICES_FILE"] == f"{mount['mountPath']}/prices.yaml"
