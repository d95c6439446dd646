"""What docs/neighbours.md tells people to apply is what the operator takes: pools parse, scalers are welcome."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tidegate_operator.api.manifest import read_manifest
from tidegate_operator.world.neighbours import Scaler, foreign_scalers, read_scaler

PAGE = (Path(__file__).parents[2] / "docs/neighbours.md").read_text()
BLOCKS = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
DOCUMENTS = [document for block in BLOCKS for document in yaml.safe_load_all(block)]
POOLS = [each for each in DOCUMENTS if each.get("apiVersion") == "tidegate.dev/v1alpha1"]
SCALERS = [each for each in DOCUMENTS if each.get("kind") in ("HorizontalPodAutoscaler", "ScaledObject")]


def scaler(document: dict[str, Any]) -> Scaler:
    found = read_scaler({**document, "metadata": {**document["metadata"], "namespace": "default"}})
    assert found is not None
    return found


@pytest.mark.parametrize("document", SCALERS, ids=lambda each: each["kind"])
def test_a_recommended_autoscaler_of_a_recommended_pool_disturbs_nobody(document: dict[str, Any]) -> None:
    (shown,) = POOLS
    pool = read_manifest(shown, source="docs/neighbours.md")
    assert foreign_scalers(pool, (scaler(document),)) == ""
    automatic = read_manifest({**shown, "spec": {**shown["spec"], "scaling": {"mode": "Auto"}}}, source="the same")
    assert document["kind"] in foreign_scalers(automatic, (scaler(document),)), "it does mean this pool"


def test_the_page_shows_both_autoscalers_and_a_route_to_the_endpoint_pool() -> None:
    assert {each["kind"] for each in SCALERS} == {"HorizontalPodAutoscaler", "ScaledObject"}
    (route,) = (each for each in DOCUMENTS if each.get("kind") == "HTTPRoute")
    assert route["spec"]["rules"][0]["backendRefs"][0]["group"] == "inference.networking.k8s.io"
