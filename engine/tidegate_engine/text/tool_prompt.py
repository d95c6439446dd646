"""Tools for models whose chat template knows none, such as Gemma 3's: told in words, as their makers advise.

The functions go into the system message, calls and results into ordinary turns. server/parsers/pythonic.py reads what
such models answer.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tidegate_engine.text.chat_template import ChatOptions

INSTRUCTION = (
    "You have access to functions. If you decide to call one of them, answer with nothing but a JSON object of this "
    'form: {"name": function name, "parameters": dictionary of argument names and their values}. To call several, '
    "answer with a JSON array of such objects. If no function is needed, answer as usual.\n\nThe functions:\n"
)

Turn = Mapping[str, object]


def without_tools(turns: Sequence[Turn], options: ChatOptions) -> tuple[list[Turn], ChatOptions]:
    """The same conversation and options in the words of a template without tools."""
    told = [_told(turn) for turn in turns]
    if options.tools:
        functions = [tool.get("function", tool) for tool in options.tools]
        told = _with_system(told, INSTRUCTION + json.dumps(functions, ensure_ascii=False, indent=1))
    return _merged(told), replace(options, tools=())


def _told(turn: Turn) -> Turn:
    if turn["role"] == "tool":
        return {"role": "user", "content": f"```tool_output\n{turn['content']}\n```", "is_tool": True}
    calls = turn.get("tool_calls")
    if not isinstance(calls, list) or not calls:
        return turn
    listed = [{"name": call["function"]["name"], "parameters": call["function"]["arguments"]} for call in calls]
    written = json.dumps(listed[0] if len(listed) == 1 else listed, ensure_ascii=False)
    return {"role": turn["role"], "content": "\n".join(text for text in (str(turn["content"]), written) if text)}


def _with_system(turns: list[Turn], text: str) -> list[Turn]:
    if turns and turns[0]["role"] == "system":
        return [{**turns[0], "content": f"{turns[0]['content']}\n\n{text}"}, *turns[1:]]
    return [{"role": "system", "content": text}, *turns]


def _merged(turns: Sequence[Turn]) -> list[Turn]:
    """Results in a row, and what the user says after them, are one turn: such templates want roles to alternate."""
    merged: list[Turn] = []
    for turn in turns:
        before = merged[-1] if merged else None
        if before is not None and before.get("is_tool") and turn["role"] == "user":
            merged[-1] = {**turn, "content": f"{before['content']}\n{turn['content']}", "is_tool": turn.get("is_tool")}
        else:
            merged.append(turn)
    return [{name: value for name, value in turn.items() if name != "is_tool"} for turn in merged]
