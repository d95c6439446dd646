"""Within v1alpha1 a CRD only grows: what older clusters have stored, and what people wrote, stays valid.

tests/baselines holds the CRD and pools of each released version; a release adds its own and changes none.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tidegate_operator.api.crd import custom_resource_definition
from tidegate_operator.api.manifest import read_manifest

BASELINES = Path(__file__).parents[1] / "baselines"
Schema = dict[str, Any]  # JSON Schema is free-form
TIGHTENED_BY_LESS = ("maximum", "maxLength", "maxItems", "maxProperties")
TIGHTENED_BY_MORE = ("minimum", "minLength", "minItems", "minProperties")


def version(crd: dict[str, Any]) -> dict[str, Any]:
    (only,) = crd["spec"]["versions"]
    return dict(only)


def narrowed(old: Schema, new: Schema, path: str) -> Iterator[str]:
    """What the new schema refuses, drops or fills in otherwise than the old one."""
    for keyword in ("type", "format", "x-kubernetes-int-or-string", "x-kubernetes-list-type"):
        if old.get(keyword) != new.get(keyword):
            yield f"{path}: {keyword} was {old.get(keyword)}, is {new.get(keyword)}"
    if "default" in new and old.get("default") != new["default"]:  # without one, what is stored keeps the old one
        yield f"{path}: default was {old.get('default')}, is {new.get('default')}"
    if gone := set(old.get("enum", ())) - set(new.get("enum", old.get("enum", ()))):
        yield f"{path}: {sorted(gone)} are no values any more"
    if "enum" in new and "enum" not in old:
        yield f"{path}: only some values are left"
    if "pattern" in new and new["pattern"] != old.get("pattern"):
        yield f"{path}: pattern was {old.get('pattern')}, is {new['pattern']}"
    if added := set(new.get("required", ())) - set(old.get("required", ())):
        yield f"{path}: {sorted(added)} became required"
    for keyword, is_tighter in bounds():
        if keyword in new and (keyword not in old or is_tighter(old[keyword], new[keyword])):
            yield f"{path}: {keyword} was {old.get(keyword)}, is {new[keyword]}"
    for name, child in old.get("properties", {}).items():
        if name not in new.get("properties", {}):
            yield f"{path}.{name}: is gone"
        else:
            yield from narrowed(child, new["properties"][name], f"{path}.{name}")
    for keyword in ("items", "additionalProperties"):
        if isinstance(old.get(keyword), dict):
            yield from narrowed(old[keyword], new.get(keyword, {}), f"{path}[]")


def bounds() -> Iterator[tuple[str, Any]]:
    yield from ((keyword, lambda old, new: new < old) for keyword in TIGHTENED_BY_LESS)
    yield from ((keyword, lambda old, new: new > old) for keyword in TIGHTENED_BY_MORE)


@pytest.mark.parametrize("path", sorted(BASELINES.glob("crd-*.yaml")), ids=lambda path: path.stem)
def test_no_field_was_removed_or_narrowed_and_no_default_is_another(path: Path) -> None:
    old, new = version(yaml.safe_load(path.read_text())), version(custom_resource_definition())
    assert old["name"] == new["name"]
    schemas = (each["schema"]["openAPIV3Schema"]["properties"]["spec"] for each in (old, new))
    assert list(narrowed(*schemas, "spec")) == []


@pytest.mark.parametrize("path", sorted(BASELINES.glob("crd-*.yaml")), ids=lambda path: path.stem)
def test_what_an_older_operator_wrote_into_status_can_still_be_stored(path: Path) -> None:
    old, new = version(yaml.safe_load(path.read_text())), version(custom_resource_definition())
    schemas = (each["schema"]["openAPIV3Schema"]["properties"]["status"] for each in (old, new))
    assert list(narrowed(*schemas, "status")) == []


@pytest.mark.parametrize("path", sorted(BASELINES.glob("pools-*.yaml")), ids=lambda path: path.stem)
def test_a_pool_of_an_older_version_is_still_taken(path: Path) -> None:
    for document in yaml.safe_load_all(path.read_text()):
        assert read_manifest(document, source=path.name).metadata.name


def test_the_judge_sees_what_would_hurt() -> None:
    old = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 9}, "b": {"type": "integer"}}}
    new = {"type": "object", "required": ["a"], "properties": {"a": {"type": "string", "maxLength": 5, "default": "x"}}}
    assert set(narrowed(old, new, "spec")) == {
        "spec: ['a'] became required",
        "spec.a: maxLength was 9, is 5",
        "spec.a: default was None, is x",
        "spec.b: is gone",
    }
