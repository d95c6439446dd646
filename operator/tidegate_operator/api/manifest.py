"""A pool as a person writes it: one parsed YAML document in, an InferencePool out, without forgiveness.

The command line reads files with it; the sentences are those of the API server where both refuse.
"""

from typing import Any

from pydantic import ValidationError

from tidegate_operator.api.base import API_VERSION, KIND
from tidegate_operator.api.errors import BadManifest
from tidegate_operator.api.rules import broken
from tidegate_operator.api.spec import InferencePoolSpec
from tidegate_operator.api.v1alpha1 import InferencePool


def read_manifest(document: object, *, source: str) -> InferencePool:
    """A pool from one parsed YAML document. Raises BadManifest, naming `source`, each wrong field and what is wrong."""
    if not isinstance(document, dict) or document.get("kind") != KIND:
        kind = _said(document.get("kind") if isinstance(document, dict) else type(document).__name__)
        raise BadManifest(f"{source}: expected kind {KIND} of {API_VERSION}, found {kind}")
    if document.get("apiVersion") != API_VERSION:
        raise BadManifest(
            f"{source}: apiVersion is {_said(document.get('apiVersion'))}; this version reads {API_VERSION}"
        )
    pool = _read(document, source)
    if sentences := broken(pool):
        raise BadManifest(f"{source}: " + "; ".join(sentences))
    return pool


def _read(document: dict[str, Any], source: str) -> InferencePool:
    place: tuple[str, ...] = ("spec",)
    try:
        spec = InferencePoolSpec.model_validate(
            document.get("spec") or {}, extra="forbid", by_alias=True, by_name=False
        )
        place = ()
        return InferencePool.model_validate({**document, "spec": spec})
    except ValidationError as error:
        raise BadManifest(f"{source}: " + "; ".join(_sentence(place, item) for item in error.errors())) from error


def _said(value: object) -> str:
    """A short name; whatever else a file has there may be endless once it is spelled out."""
    return value[:80] if isinstance(value, str) else type(value).__name__


def _sentence(place: tuple[str, ...], item: Any) -> str:  # pydantic's ErrorDetails
    field = ".".join([*place, *(str(part) for part in item["loc"])])
    if item["type"] == "extra_forbidden":
        return f"{field}: is not a field of this resource; check the spelling"
    return f"{field}: {item['msg'].removeprefix('Value error, ')}"
