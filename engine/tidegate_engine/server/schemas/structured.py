"""How a client asks for an answer of a given form: OpenAI's response_format, vLLM's structured_outputs and guided_*.

All of them become one Structure; a request may name one only.
"""

import json
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import Discriminator, Field, StrictBool, Tag, model_validator
from pydantic_core import PydanticCustomError

from tidegate_engine.server.schemas.base import Body

MAX_CHOICES_OF_TEXT = 1024
ANY_OBJECT: dict[str, object] = {"type": "object"}


class Structure(NamedTuple):
    """`text`: a JSON schema, a regular expression, a JSON list of texts or a grammar. `param`: the field it came in."""

    kind: Literal["json_schema", "regex", "choice", "grammar"]
    text: str
    param: str


Schema = dict[str, Any] | str | bool  # Any: JSON Schema, which the grammar compiler judges
Choices = Annotated[list[str], Field(min_length=1, max_length=MAX_CHOICES_OF_TEXT, fail_fast=True)]


class JsonSchema(Body):
    """`strict` changes nothing here: a schema always holds."""

    name: str
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None  # Any: as above
    strict: StrictBool | None = None


class TextFormat(Body):
    type: Literal["text"]


class JsonObjectFormat(Body):
    type: Literal["json_object"]


class JsonSchemaFormat(Body):
    type: Literal["json_schema"]
    json_schema: JsonSchema


_TAGS = {"json_object": "a JSON object", "json_schema": "a JSON schema"}  # no names of fields: they stand in paths


def _format_tag(value: object) -> str:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return _TAGS.get(kind, "plain text") if isinstance(kind, str) else "plain text"


ResponseFormat = Annotated[
    Annotated[TextFormat, Tag("plain text")]
    | Annotated[JsonObjectFormat, Tag("a JSON object")]
    | Annotated[JsonSchemaFormat, Tag("a JSON schema")],
    Discriminator(_format_tag),
]


class StructuredOutputs(Body):
    """vLLM's: one of them."""

    json_: Annotated[Schema | None, Field(alias="json")] = None
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = None
    json_object: StrictBool | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if len(self.structures("structured_outputs")) != 1:
            raise PydanticCustomError("one_of", "give one of 'json', 'regex', 'choice', 'grammar' and 'json_object'")
        return self

    def structures(self, path: str) -> list[Structure]:
        found = named_structures(f"{path}.", json_=self.json_, regex=self.regex, choice=self.choice, text=self.grammar)
        if self.json_object:
            found.append(Structure("json_schema", json.dumps(ANY_OBJECT), f"{path}.json_object"))
        return found


def named_structures(
    prefix: str, *, json_: Schema | None, regex: str | None, choice: list[str] | None, text: str | None
) -> list[Structure]:
    found = []
    if json_ is not None:
        found.append(Structure("json_schema", json_ if isinstance(json_, str) else json.dumps(json_), f"{prefix}json"))
    if regex is not None:
        found.append(Structure("regex", regex, f"{prefix}regex"))
    if choice is not None:
        found.append(Structure("choice", json.dumps(choice), f"{prefix}choice"))
    if text is not None:
        found.append(Structure("grammar", text, f"{prefix}grammar"))
    return found


def structures_of_format(response_format: ResponseFormat | None) -> list[Structure]:
    match response_format:
        case JsonObjectFormat():
            return [Structure("json_schema", json.dumps(ANY_OBJECT), "response_format")]
        case JsonSchemaFormat(json_schema=wanted):
            schema = ANY_OBJECT if wanted.schema_ is None else wanted.schema_
            return [Structure("json_schema", json.dumps(schema), "response_format.json_schema.schema")]
        case _:
            return []
