"""Chat templates as transformers renders them: sandboxed Jinja, the same trimming, globals and filters.

A template comes with the checkpoint, or from the pool for models without one. Compiled once at start, so that a broken
template is known before a client asks; rendered for each chat request.
Reference: transformers/utils/chat_template_utils.py.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NoReturn

from jinja2 import Template, TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tidegate_core.errors import BadLaunch
from tidegate_engine.errors import BadRequest


class NoChatTemplate(BadRequest):
    """Chat was asked of a model that has no chat template."""


class ChatRefused(BadRequest):
    """The template does not take these messages, such as a role it does not know."""


@dataclass(frozen=True)
class ChatOptions:
    """How a conversation becomes a prompt; `variables` are what the client sets for this template."""

    adds_generation_prompt: bool = True
    continues_final_message: bool = False
    tools: tuple[Mapping[str, object], ...] = ()
    variables: Mapping[str, object] = field(default_factory=dict)


DEFAULT_OPTIONS = ChatOptions()
RESERVED_VARIABLES = frozenset({"messages", "tools", "add_generation_prompt", "documents"})


def utc_now() -> datetime:
    return datetime.now(tz=UTC)


class ChatTemplate:
    """One compiled template. `source` names it in errors, `now` is what strftime_now() in it formats."""

    def __init__(self, text: str, source: str, now: Callable[[], datetime] = utc_now) -> None:
        """Raises BadLaunch when the text is not a Jinja template."""
        self._source = source
        self.text = text
        self.takes_tools = re.search(r"\btools\b", text) is not None
        try:
            self._template = _compile(text, now)
        except TemplateError as error:
            raise BadLaunch(f"{source} is not a valid chat template: {error}; correct it") from error

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        special_tokens: Mapping[str, str],
        options: ChatOptions = DEFAULT_OPTIONS,
    ) -> str:
        """The prompt, up to where the assistant's answer begins. Raises ChatRefused with the template's own words."""
        variables = {
            "messages": list(messages),
            "add_generation_prompt": options.adds_generation_prompt and not options.continues_final_message,
            "tools": list(options.tools) or None,
            "documents": None,
        }
        text = self._rendered({**special_tokens, **options.variables, **variables})
        return self._cut_to_final_message(text, messages) if options.continues_final_message else text

    def _rendered(self, variables: Mapping[str, object]) -> str:
        try:
            return self._template.render(variables)
        # a template runs arbitrary expressions: what they trip over is a message it was not written for
        except (TemplateError, TypeError, ValueError, LookupError, ArithmeticError) as error:
            raise ChatRefused(f"{self._source} refuses these messages: {error}; change them") from error

    def _cut_to_final_message(self, text: str, messages: Sequence[Mapping[str, object]]) -> str:
        """Without what closes the last turn, white space at its end only where the template keeps it."""
        content = str(messages[-1].get("content", "")) if messages else ""
        start = text.rfind(content.strip()) if content.strip() else -1
        if start < 0:
            raise ChatRefused(f"{self._source} does not write the last message as it is, so it cannot be continued")
        whole = content.lstrip()
        return text[:start] + (whole if text.startswith(whole, start) else whole.rstrip())


def _compile(text: str, now: Callable[[], datetime]) -> Template:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda layout: now().strftime(layout)
    return environment.from_string(text)


# Any: whatever value a template holds
def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """Jinja's own filter escapes HTML, which would reach the model."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)
