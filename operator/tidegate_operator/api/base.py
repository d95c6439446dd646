"""What every model of the resource shares: camelCase on the wire, frozen in memory, docstrings as `kubectl explain`.

Stored objects are read leniently (`extra="ignore"`), so that an older operator survives a newer CRD; manifests that a
person hands to the command line are read strictly, by manifest.py.
"""

from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, PlainSerializer, WithJsonSchema
from pydantic.alias_generators import to_camel

from tidegate_core.errors import BadQuantity
from tidegate_core.quantity import PATTERN, parse_quantity

GROUP = "tidegate.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "InferencePool"
PLURAL = "inferencepools"
CRD_NAME = f"{PLURAL}.{GROUP}"


class ApiModel(BaseModel):
    """Base of everything under an InferencePool."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, frozen=True, extra="ignore", use_attribute_docstrings=True
    )

    def to_wire(self) -> dict[str, Any]:  # JSON of the API
        """The object as the API server stores it: camelCase, absent instead of null."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


def _spell_quantity(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _check_quantity(text: str) -> str:
    try:
        parse_quantity(text)
    except BadQuantity as error:
        raise ValueError(str(error)) from error
    return text


def _spell_time(value: datetime) -> str:
    return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


Quantity = Annotated[
    str,
    BeforeValidator(_spell_quantity),
    AfterValidator(_check_quantity),
    WithJsonSchema({"x-kubernetes-int-or-string": True, "pattern": PATTERN, "maxLength": 32, "minimum": 0}),
]
"""A Kubernetes quantity, kept as written; tidegate_core.quantity reads it."""

Timestamp = Annotated[
    datetime,
    PlainSerializer(_spell_time, return_type=str),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
"""RFC 3339 in UTC with whole seconds, as Kubernetes writes times."""
