"""The chart's alerts: good rules, each with cases of when it fires and when not, each explained to who is on call."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from prometheus import check_rules, run_rule_tests

ROOT = Path(__file__).parents[2]
ALERTS = ROOT / "charts/tidegate/files/alerts.yaml"
CASES = Path(__file__).with_name("alerts_test.yaml")


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def test_prometheus_accepts_every_rule() -> None:
    assert f"{len(rules())} rules found" in check_rules(ALERTS)


def test_alerts_fire_when_they_should_and_not_otherwise() -> None:
    assert "SUCCESS" in run_rule_tests(CASES)


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_every_alert_has_a_case_in_which_it_fires_and_a_word_for_who_is_on_call(rule: dict[str, Any]) -> None:
    cases = [case for test in yaml.safe_load(CASES.read_text())["tests"] for case in test["alert_rule_test"]]
    assert any(case["alertname"] == rule["alert"] and case["exp_alerts"] for case in cases)
    assert rule["annotations"].keys() == {"summary", "description"}
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert f"| `{rule['alert']}` |" in (ROOT / "docs/observability.md").read_text()
