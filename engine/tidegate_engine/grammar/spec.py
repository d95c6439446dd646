"""What a client may hold an answer to, and how it is spelt for the grammar library.

The server makes a GrammarSpec of a request; compiler.py turns it into a constraint.
"""

import json
import re
from dataclasses import dataclass
from enum import StrEnum

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import any_to_lark

from tidegate_engine.errors import BadGrammar
from tidegate_engine.grammar.multiples import check_multiples

# Beyond, compiling takes seconds, and chains of rules need more stack than there is.
MAX_SPEC_BYTES = 128 * 1024

_REGEX_SYNTAX = re.compile(r"[\\.+*?()|\[\]{}^$#&\-~/]")


class GrammarKind(StrEnum):
    """JSON_SCHEMA: a schema as JSON text. CHOICE: a JSON list of texts. GRAMMAR: Lark, or llama.cpp's GBNF."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    CHOICE = "choice"
    GRAMMAR = "grammar"


@dataclass(frozen=True)
class GrammarSpec:
    """The whole answer must match it."""

    kind: GrammarKind
    text: str


ANY_JSON_OBJECT = GrammarSpec(GrammarKind.JSON_SCHEMA, '{"type": "object"}')


def library_grammar(spec: GrammarSpec) -> str:
    """Raises BadGrammar for what is too long or not even spelt right."""
    num_bytes = len(spec.text.encode("utf-8", "surrogatepass"))
    if num_bytes > MAX_SPEC_BYTES:
        raise BadGrammar(
            f"the {spec.kind} has {num_bytes} bytes, at most {MAX_SPEC_BYTES} are compiled: make it smaller"
        )
    try:
        return _SPELLINGS[spec.kind](spec.text)
    except Exception as error:  # broken JSON, half surrogates, brackets thousands deep, the GBNF converter's own errors
        raise BadGrammar(f"the {spec.kind} cannot be read: {error}") from error


def _json_schema(text: str) -> str:
    # lenient would ignore what it does not know: an answer must not break a rule that was asked for
    grammar = LLMatcher.grammar_from_json_schema(text, overrides={"lenient": False})
    check_multiples(text)
    return grammar


def _choice(text: str) -> str:
    choices = json.loads(text)
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, str) for choice in choices):
        raise ValueError("it must be a list of at least one text")
    return LLMatcher.grammar_from_regex("|".join(_REGEX_SYNTAX.sub(r"\\\g<0>", choice) for choice in choices))


def _grammar(text: str) -> str:
    for rest in text.split("%json")[1:]:  # Lark's way to have a schema within a grammar
        check_multiples(rest)
    return LLMatcher.grammar_from_lark(any_to_lark(text))


_SPELLINGS = {
    GrammarKind.JSON_SCHEMA: _json_schema,
    GrammarKind.REGEX: LLMatcher.grammar_from_regex,
    GrammarKind.CHOICE: _choice,
    GrammarKind.GRAMMAR: _grammar,
}
