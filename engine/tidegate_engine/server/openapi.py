"""The OpenAPI document of the API port, made from the same schemas that read bodies and write answers.

FastAPI cannot derive it: bodies are read by our own reader, with limits. The document is made once, when the app is.
https://spec.openapis.org/oas/v3.1.0
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from tidegate_core.telemetry import METRICS_PATH
from tidegate_engine.server.answers import (
    ChatAnswer,
    DetokenizeAnswer,
    ModelCard,
    ModelList,
    TextAnswer,
    TokenizeAnswer,
)
from tidegate_engine.server.callers import is_api
from tidegate_engine.server.errors import ErrorAnswer
from tidegate_engine.server.schemas.chat import ChatRequest
from tidegate_engine.server.schemas.completion import CompletionRequest
from tidegate_engine.server.schemas.tokenize import DetokenizeRequest, TokenizeRequest

OPENAPI_PATH = "/openapi.json"
TOKEN_FIELDS = {"prompt", "tokens", "stop_token_ids"}
Json = dict[str, Any]  # a part of the document

UPLOAD_FAULTS = {400: "The body is at fault.", 408: "The body came too slowly.", 413: "The body is too large."}
LOAD_FAULTS = {
    429: "This tenant has more than its share; come back after Retry-After.",
    503: "Too much load, or the engine drains; come back after Retry-After.",
}
SERVER_FAULTS = {500: "The engine failed on this request."}
UNKNOWN_MODEL = {404: "No such model is served here."}
NO_KEY = {401: "An API key is needed."}
RETRY_AFTER = {"description": "Seconds after which the same request is likely to be accepted.", "type": "integer"}


@dataclass(frozen=True)
class Operation:
    """One route. `faults`: statuses beside 200, with what they mean."""

    path: str
    method: Literal["get", "post"]
    id: str
    summary: str
    faults: Mapping[int, str]
    answer: type[BaseModel] | None = None  # None: text
    body: type[BaseModel] | None = None
    has_stream: bool = False


OPERATIONS = (
    Operation(
        "/v1/chat/completions", "post", "createChatCompletion", "Answers a conversation.",
        UPLOAD_FAULTS | UNKNOWN_MODEL | LOAD_FAULTS | SERVER_FAULTS, ChatAnswer, ChatRequest, has_stream=True,
    ),
    Operation(
        "/v1/completions", "post", "createCompletion", "Continues prompts.",
        UPLOAD_FAULTS | UNKNOWN_MODEL | LOAD_FAULTS | SERVER_FAULTS, TextAnswer, CompletionRequest, has_stream=True,
    ),
    Operation("/v1/models", "get", "listModels", "The served model's names.", {}, ModelList),
    Operation("/v1/models/{name}", "get", "retrieveModel", "One name of the served model.", UNKNOWN_MODEL, ModelCard),
    Operation(
        "/tokenize", "post", "tokenize", "Token ids of a text or a conversation.",
        UPLOAD_FAULTS | UNKNOWN_MODEL | LOAD_FAULTS, TokenizeAnswer, TokenizeRequest,
    ),
    Operation(
        "/detokenize", "post", "detokenize", "The text of token ids.",
        UPLOAD_FAULTS | UNKNOWN_MODEL | LOAD_FAULTS, DetokenizeAnswer, DetokenizeRequest,
    ),
    Operation("/health", "get", "health", "Whether requests are served here.", {503: LOAD_FAULTS[503]}),
    Operation(METRICS_PATH, "get", "metrics", "Prometheus metrics.", {}),
)  # fmt: skip


def openapi_document(model_names: tuple[str, ...], vocab_size: int, *, needs_keys: bool) -> Json:
    """What this process serves: only its model's names and tokens may be in a body."""
    models = {ErrorAnswer, *(each.body for each in OPERATIONS), *(each.answer for each in OPERATIONS)} - {None}
    wanted: list[tuple[type[BaseModel], Literal["validation"]]] = [(each, "validation") for each in models if each]
    wanted.sort(key=lambda item: item[0].__name__)
    _, definitions = models_json_schema(wanted, ref_template="#/components/schemas/{model}")
    schemas = definitions["$defs"]
    for schema in schemas.values():
        schema.pop("description", None)  # docstrings speak to readers of the code
    for body in filter(None, (each.body for each in OPERATIONS)):
        fields = schemas[body.__name__]["properties"]
        fields["model"] = _served(schemas[body.__name__], model_names)
        if body is TokenizeRequest:
            continue  # its prompt is always a text, and may be empty
        for name in TOKEN_FIELDS & set(fields):
            _bound_tokens(fields[name], vocab_size)
    document: Json = {
        "openapi": "3.1.0",
        "info": {"title": "Tidegate engine", "version": version("tidegate")},
        "paths": {
            each.path: {each.method: _operation(each, model_names, needs_keys=needs_keys)} for each in OPERATIONS
        },
        "components": {"schemas": schemas},
    }
    if needs_keys:
        document["components"]["securitySchemes"] = {"apiKey": {"type": "http", "scheme": "bearer"}}
    return document


def _served(schema: Json, model_names: tuple[str, ...]) -> Json:
    names: Json = {"type": "string", "enum": list(model_names)}
    return names if "model" in schema.get("required", ()) else {"anyOf": [names, {"type": "null"}], "default": None}


def _bound_tokens(schema: Json, vocab_size: int) -> None:
    """Wherever a field takes tokens or text: tokens of the vocabulary, and a text that is not empty."""
    if schema.get("type") == "integer":
        schema |= {"minimum": 0, "maximum": vocab_size - 1}
    elif schema.get("type") == "string":
        schema["minLength"] = 1
    for inner in (*schema.get("anyOf", ()), *schema.get("oneOf", ()), *filter(None, [schema.get("items")])):
        _bound_tokens(inner, vocab_size)


def _operation(operation: Operation, model_names: tuple[str, ...], *, needs_keys: bool) -> Json:
    has_key = needs_keys and is_api(operation.path)
    faults = {**operation.faults, **(NO_KEY if has_key else {})}
    described: Json = {
        "operationId": operation.id,
        "summary": operation.summary,
        "responses": {"200": _answer(operation), **{str(status): _fault(status, faults[status]) for status in faults}},
    }
    if operation.body is not None:
        described["requestBody"] = {"required": True, "content": _json(operation.body)}
    if "{name}" in operation.path:
        name = {"type": "string", "enum": list(model_names)}
        described["parameters"] = [{"name": "name", "in": "path", "required": True, "schema": name}]
    if has_key:
        described["security"] = [{"apiKey": []}]
    return described


def _answer(operation: Operation) -> Json:
    content: Json = {"text/plain": {}} if operation.answer is None else _json(operation.answer)
    if operation.has_stream:
        content["text/event-stream"] = {}
    return {"description": operation.summary, "content": content}


def _fault(status: int, meaning: str) -> Json:
    answer: Json = {"description": meaning, "content": _json(ErrorAnswer)}
    if status in LOAD_FAULTS:
        schema = {"type": RETRY_AFTER["type"]}
        answer["headers"] = {"Retry-After": {"description": RETRY_AFTER["description"], "schema": schema}}
    return answer


def _json(model: type[BaseModel]) -> Json:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}}}
