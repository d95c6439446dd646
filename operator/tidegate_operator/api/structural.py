"""pydantic's JSON Schema into the structural OpenAPI subset that a CRD may contain.

Every keyword is translated or refused: nothing is dropped in silence, because a field that the API server does not know
is pruned, and a pruned status field makes an operator write for ever. Called by crd.py.
"""

from typing import Any

from pydantic import BaseModel

from tidegate_operator.api.errors import NotStructural

Schema = dict[str, Any]  # a JSON Schema node is free-form

_KEPT = (
    {"type", "required", "enum", "pattern", "format", "default", "description", "minimum", "maximum"}
    | {"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"}
)  # fmt: skip
_DROPPED = frozenset(["title", "examples", "$defs", "discriminator", "propertyNames"])
_FORMATS = frozenset(["int32", "int64", "float", "double", "date-time", "date", "byte", "duration", "uuid"])


def structural_schema(model: type[BaseModel]) -> Schema:
    """The model's schema without references, unions and nulls. Raises NotStructural, naming the field."""
    schema = model.model_json_schema(by_alias=True, mode="validation")
    return _translate(schema, schema.get("$defs", {}), (model.__name__,))


def _translate(node: Schema, definitions: dict[str, Schema], path: tuple[str, ...]) -> Schema:
    node, path = _resolved(node, definitions, path)
    out: Schema = {}
    for key, value in node.items():
        match key:
            case "properties":
                out[key] = {name: _translate(child, definitions, (*path, name)) for name, child in value.items()}
            case "items":
                out[key] = _translate(value, definitions, (*path, "[]"))
            case "additionalProperties":
                out |= _free_keys(value, definitions, path, has_properties="properties" in node)
            case "const":
                out["enum"] = [value]
            case "exclusiveMinimum" | "exclusiveMaximum":
                out |= {key.replace("exclusiveM", "m"): value, key: True}
            case "description":
                out[key] = " ".join(value.split())
            case "format" if value not in _FORMATS:
                raise _refusal(path, f"format {value} is unknown to the API server")
            case _ if key in _KEPT or key.startswith("x-kubernetes-"):
                out[key] = value
            case _ if key not in _DROPPED:
                raise _refusal(path, f"keyword {key} has no structural form")
    _settle_default(out, path)
    if "type" not in out and not out.keys() & {"x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields"}:
        raise _refusal(path, "the node has no type")
    return out


def _resolved(node: Schema, definitions: dict[str, Schema], path: tuple[str, ...]) -> tuple[Schema, tuple[str, ...]]:
    """The node with reference, single allOf and `anyOf [X, null]` replaced by what they stand for, and the way there.

    The node's own description and default win over the target's. Absence says what null would.
    """
    if "anyOf" in node:
        choices = [choice for choice in node["anyOf"] if choice.get("type") != "null"]
        if len(choices) != 1 or len(node["anyOf"]) != 2:
            raise _refusal(path, "a union has no structural form; use optional siblings and a rule")
        return _resolved(choices[0] | _without(node, "anyOf"), definitions, path)
    if len(node.get("allOf", [])) == 1:
        return _resolved(node["allOf"][0] | _without(node, "allOf"), definitions, path)
    if "$ref" not in node:
        return node, path
    name = node["$ref"].rsplit("/", 1)[1]
    if f"<{name}>" in path:
        raise _refusal(path, f"{name} contains itself")
    return _resolved(definitions[name] | _without(node, "$ref"), definitions, (*path, f"<{name}>"))


def _without(node: Schema, keyword: str) -> Schema:
    return {key: value for key, value in node.items() if key != keyword}


def _free_keys(value: object, definitions: dict[str, Schema], path: tuple[str, ...], *, has_properties: bool) -> Schema:
    if isinstance(value, dict):
        return {"additionalProperties": _translate(value, definitions, (*path, "{}"))}
    if value is False and has_properties:
        return {}  # the API server prunes unknown fields, kubectl names them
    if value is True and not has_properties:
        return {"x-kubernetes-preserve-unknown-fields": True}
    raise _refusal(path, "additionalProperties here would forbid or allow everything")


def _settle_default(node: Schema, path: tuple[str, ...]) -> None:
    """Defaults without nulls and empties; an object's default is {}, so that its fields' own defaults apply."""
    if "default" not in node:
        return
    default = node.pop("default")
    if default is not None and "properties" in node:
        inner = {name: child["default"] for name, child in node["properties"].items() if "default" in child}
        if _pruned(default) != _pruned(inner):
            raise _refusal(path, f"default {default} differs from the defaults of its fields")
        node["default"] = {}
    elif default not in (None, "", [], {}):
        node["default"] = default


def _pruned(value: object) -> object:
    if not isinstance(value, dict):
        return value
    inner = {key: _pruned(item) for key, item in value.items()}
    return {key: item for key, item in inner.items() if item not in (None, "", [], {})}


def _refusal(path: tuple[str, ...], what: str) -> NotStructural:
    return NotStructural(f"{'.'.join(part for part in path if not part.startswith('<'))}: {what}")
