"""What pydantic says in JSON Schema arrives in the CRD as a structural schema, or is refused by name."""

from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from tidegate_operator.api.base import ApiModel, Quantity, Timestamp
from tidegate_operator.api.errors import NotStructural
from tidegate_operator.api.structural import structural_schema


def field(annotation: Any, default: Any = ...) -> dict[str, Any]:
    """Schema of one field of that type."""
    namespace: dict[str, Any] = {"__annotations__": {"some_field": annotation}, "__module__": __name__}
    if default is not ...:
        namespace["some_field"] = default
    model = type("Model", (ApiModel,), namespace)
    return structural_schema(model)["properties"]["someField"]


class Inner(ApiModel):
    """An inner object."""

    size: int = Field(default=3, ge=1)
    name: str | None = None


@pytest.mark.parametrize(
    ("annotation", "default", "expected"),
    [
        pytest.param(int, 7, {"type": "integer", "default": 7}, id="a default is kept"),
        pytest.param(bool, Field(default=False), {"type": "boolean", "default": False}, id="false is a default too"),
        pytest.param(str | None, None, {"type": "string"}, id="null becomes absence"),
        pytest.param(
            tuple[int, ...], (), {"type": "array", "items": {"type": "integer"}}, id="an empty list is absence",
        ),
        pytest.param(Literal["A"], "A", {"type": "string", "enum": ["A"], "default": "A"}, id="const becomes enum"),
        pytest.param(
            float, Field(default=1.0, gt=0), {"type": "number", "minimum": 0, "exclusiveMinimum": True, "default": 1.0},
            id="an exclusive bound is a bound and a flag",
        ),
        pytest.param(
            dict[str, int], Field(default={}), {"type": "object", "additionalProperties": {"type": "integer"}},
            id="a map keeps its value type",
        ),
        pytest.param(
            dict[str, Any], Field(default={}), {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            id="a free object keeps unknown fields",
        ),
        pytest.param(Timestamp | None, None, {"type": "string", "format": "date-time"}, id="times are date-time"),
        pytest.param(
            Annotated[int, Field(json_schema_extra={"x-kubernetes-list-type": "atomic"})], 2,
            {"type": "integer", "default": 2, "x-kubernetes-list-type": "atomic"}, id="extensions survive",
        ),
    ],
)  # fmt: skip
def test_a_construct_is_translated(annotation: Any, default: Any, expected: dict[str, Any]) -> None:
    assert field(annotation, default) == expected


def test_an_object_is_inlined_and_its_default_is_empty_so_that_inner_defaults_apply() -> None:
    schema = field(Inner, Inner())
    assert "$ref" not in str(schema)
    assert schema["default"] == {}
    assert schema["properties"]["size"] == {"type": "integer", "minimum": 1, "default": 3}
    assert schema["properties"]["name"] == {"type": "string"}


def test_an_optional_object_has_no_default() -> None:
    assert "default" not in field(Inner | None, None)


def test_a_quantity_is_a_number_or_a_string() -> None:
    schema = field(Quantity, "1Gi")
    assert schema["x-kubernetes-int-or-string"] is True
    assert "type" not in schema


def test_a_field_docstring_becomes_its_description_in_one_line() -> None:
    class Documented(ApiModel):
        size: int
        """How large
        it is."""

    assert structural_schema(Documented)["properties"]["size"]["description"] == "How large it is."


class Endless(ApiModel):
    """Contains itself."""

    child: "Endless | None" = None


@pytest.mark.parametrize(
    ("annotation", "default", "complaint"),
    [
        pytest.param(int | str, 1, "union", id="a union"),
        pytest.param(set[int], Field(default=set()), "uniqueItems", id="a set"),
        pytest.param(tuple[int, str], (1, "a"), "prefixItems", id="a tuple of different things"),
        pytest.param(Endless, Endless(), "contains itself", id="recursion"),
        pytest.param(Inner, Inner(size=9), "differs from the defaults", id="an object default unlike its fields'"),
        pytest.param(Any, ..., "no type", id="anything"),
    ],
)
def test_what_a_crd_cannot_say_is_refused_by_name(annotation: Any, default: Any, complaint: str) -> None:
    with pytest.raises(NotStructural, match=complaint) as refusal:
        field(annotation, default)
    assert "someField" in str(refusal.value)
