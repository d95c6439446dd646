"""What an answer is held to: the form a client asked for, or calls where tool_choice forces them. plans.py calls it."""

import json

from tidegate_engine.errors import BadGrammar
from tidegate_engine.grammar.base import TokenConstraint
from tidegate_engine.grammar.spec import GrammarKind, GrammarSpec
from tidegate_engine.server.errors import bad_request
from tidegate_engine.server.front import Front
from tidegate_engine.server.offload import compiled
from tidegate_engine.server.parsers.choice import ForcedCall
from tidegate_engine.server.schemas.chat import ChatRequest
from tidegate_engine.server.schemas.generation import GenerationRequest
from tidegate_engine.server.schemas.structured import ANY_OBJECT, Structure
from tidegate_engine.server.schemas.tools import NamedTool, Tool


def forced_call(body: ChatRequest) -> ForcedCall | None:
    if isinstance(body.tool_choice, NamedTool):
        return ForcedCall(body.tool_choice.function.name)
    return ForcedCall(None) if body.tool_choice == "required" else None


async def constraint_of(front: Front, body: GenerationRequest) -> TokenConstraint | None:
    """Compiled beside the event loop. Raises ApiError (400) that names the field of a bad grammar."""
    structure = body.structure or (forced_structure(body) if isinstance(body, ChatRequest) else None)
    if structure is None:
        return None
    if front.grammars is None:
        raise bad_request("this server compiles no grammars; leave the field out", param=structure.param)
    spec = GrammarSpec(GrammarKind(structure.kind), structure.text)
    try:
        return await compiled(front, front.grammars, spec)
    except BadGrammar as error:
        raise bad_request(
            f"Invalid '{structure.param}': {error}", param=structure.param, code="invalid_grammar"
        ) from error


def forced_structure(body: ChatRequest) -> Structure | None:
    """Arguments of the named function, or a JSON list of calls of any."""
    forced, tools = forced_call(body), body.tools or []
    if forced is None:
        return None
    if forced.name is not None:
        schema = next(parameters(tool) for tool in tools if tool.function.name == forced.name)
    else:
        schema = calls_schema(tools, allows_several=body.parallel_tool_calls is not False)
    return Structure("json_schema", json.dumps(schema), "tools")


def parameters(tool: Tool) -> dict[str, object]:
    return tool.function.parameters or dict(ANY_OBJECT)


def calls_schema(tools: list[Tool], *, allows_several: bool) -> dict[str, object]:
    """Each function's own schema stands under $defs, its references moved with it."""
    schema: dict[str, object] = {
        "type": "array",
        "minItems": 1,
        "items": {"anyOf": [_call_schema(tool.function.name) for tool in tools]},
        "$defs": {tool.function.name: _moved(parameters(tool), f"#/$defs/{tool.function.name}") for tool in tools},
    }
    return schema if allows_several else {**schema, "maxItems": 1}


def _call_schema(name: str) -> dict[str, object]:
    return {
        "type": "object",
        "properties": {"name": {"const": name}, "arguments": {"$ref": f"#/$defs/{name}"}},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _moved(schema: object, place: str) -> object:
    if isinstance(schema, list):
        return [_moved(item, place) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: place + value[1:] if key == "$ref" and isinstance(value, str) and value.startswith("#") else
        _moved(value, place)
        for key, value in schema.items()
    }  # fmt: skip
