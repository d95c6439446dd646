"""The CRD as a document: subresources, columns, list keys, size, and the manners every field keeps."""

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tidegate_operator.api.base import GROUP, KIND, PLURAL
from tidegate_operator.api.crd import crd_yaml, custom_resource_definition, pool_schema
from tidegate_operator.api.reasons import Reason

CRD = custom_resource_definition()
VERSION = CRD["spec"]["versions"][0]


def nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every node of a structural schema with its path."""
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}".lstrip("."))
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from nodes(schema[key], f"{path}[]")


NODES = dict(nodes(pool_schema()))


def test_the_name_is_plural_and_group_as_the_api_server_demands() -> None:
    assert CRD["metadata"]["name"] == f"{PLURAL}.{GROUP}"
    assert CRD["spec"]["names"]["kind"] == KIND


def test_status_and_scale_are_subresources() -> None:
    assert VERSION["subresources"]["status"] == {}
    for path in VERSION["subresources"]["scale"].values():
        assert path.lstrip(".") in NODES, f"{path} is not a field"


def test_every_column_shows_a_field_that_exists() -> None:
    for column in VERSION["additionalPrinterColumns"]:
        path = column["jsonPath"].lstrip(".")
        assert path in NODES or path == "metadata.creationTimestamp", column


def test_every_field_of_the_spec_explains_itself() -> None:
    silent = [
        path
        for path, node in NODES.items()
        if path.startswith("spec") and not path.endswith("[]") and not node.get("description")
    ]
    assert silent == []


def test_every_scalar_default_of_the_spec_is_told_by_kubectl_explain_and_once() -> None:
    told = {path: node for path, node in nodes(VERSION["schema"]["openAPIV3Schema"]) if path.startswith("spec.")}
    hold = told["spec.scaling.scaleDownHoldSeconds"]
    assert hold["description"].endswith(" is removed. (default 300)")
    assert told["spec.suspend"]["description"].endswith("(default false)")
    for path, node in told.items():
        has_scalar = "default" in node and node["default"] != {}
        assert node.get("description", "").count("(default ") == has_scalar, path
    assert "(default" not in NODES["spec.suspend"]["description"], "the API reference has a column for it"


def test_every_rule_has_a_sentence() -> None:
    sentences = [rule["message"] for node in NODES.values() for rule in node.get("x-kubernetes-validations", [])]
    assert len(sentences) >= 9
    assert all(len(sentence.split()) >= 5 for sentence in sentences)


def test_everything_a_rule_may_walk_is_bounded() -> None:
    unbounded = [
        path
        for path, node in NODES.items()
        if path.startswith("spec")
        and (
            (node.get("type") == "array" and "maxItems" not in node)
            or ("additionalProperties" in node and "maxProperties" not in node)
            or (node.get("type") == "string" and not node.keys() & {"maxLength", "enum"} and not path.endswith("[]"))
        )
    ]
    assert unbounded == []


def test_conditions_are_a_map_keyed_by_their_type() -> None:
    conditions = NODES["status.conditions"]
    assert conditions["x-kubernetes-list-type"] == "map"
    assert conditions["x-kubernetes-list-map-keys"] == ["type"]
    assert "type" in conditions["items"]["required"]


def test_only_the_model_is_required() -> None:
    assert pool_schema()["required"] == ["spec"]
    assert NODES["spec"]["required"] == ["model"]
    assert NODES["spec.model"]["required"] == ["uri"]


def test_the_document_fits_client_side_apply() -> None:
    text = crd_yaml()
    assert len(text) < 200_000
    assert yaml.safe_load(text) == CRD


@pytest.mark.parametrize("reason", Reason)
def test_a_reason_is_a_camel_case_word_with_a_meaning(reason: Reason) -> None:
    assert reason.isalnum()
    assert reason[0].isupper()
    assert len(reason.doc) > 10
    assert Reason(str(reason)) is reason
