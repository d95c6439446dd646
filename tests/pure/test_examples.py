"""The pools in examples/ are what `tidegate plan -f` and the API server take, and stay so."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tidegate_operator.api.manifest import read_manifest

EXAMPLES = Path(__file__).parents[2] / "examples"


def pools() -> dict[str, Any]:
    found = {str(path.relative_to(EXAMPLES)): yaml.safe_load(path.read_text()) for path in EXAMPLES.rglob("*.yaml")}
    return {name: document for name, document in found.items() if document.get("kind") == "InferencePool"}


@pytest.mark.parametrize("name", pools())
def test_an_example_is_a_pool_that_would_be_taken(name: str) -> None:
    assert read_manifest(pools()[name], source=name).metadata.name


def test_the_smallest_has_three_lines_of_spec_at_most() -> None:
    text = (EXAMPLES / "minimal.yaml").read_text()
    assert len(text.partition("spec:")[2].strip().splitlines()) <= 3


def test_the_list_of_examples_names_every_file() -> None:
    listed = (EXAMPLES / "README.md").read_text()
    assert [name for name in pools() if "/" not in name and f"({name})" not in listed] == []
