"""Tool calls and reasoning out of a model's text: whole or in any pieces, the same parts, and nothing lost."""

import json
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate_core.launch import ReasoningParser, ToolParser
from tidegate_engine.server.parsers.choice import AnswerFormat, ForcedCall, answer_format
from tidegate_engine.server.parsers.parts import (
    CallArguments,
    CallStart,
    Content,
    Part,
    PartReader,
    Reasoning,
    joined,
)

NAMES = ("get_weather", "now")
PARSERS = [ToolParser.HERMES, ToolParser.LLAMA3_JSON, ToolParser.MISTRAL, ToolParser.PYTHONIC]


def reader_of(tools: ToolParser, reasoning: ReasoningParser = ReasoningParser.NONE, **fields) -> PartReader:
    return AnswerFormat(tools, reasoning).reader(NAMES, fields.get("forced"), is_open=fields.get("is_open", False))


def read(reader: PartReader, pieces: Sequence[str]) -> list[Part]:
    return joined([part for piece in pieces for part in reader.feed(piece)] + reader.flush())


def call(index: int, name: str, arguments: str) -> list[Part]:
    return [CallStart(index, name), CallArguments(index, arguments)]


PARIS = '{"city": "Par\\"}is", "days": [1, {"a": 2}]}'
WEATHER = call(0, "get_weather", PARIS)
NOW = call(1, "now", "{}")

CALLS = {
    "hermes, one": (
        ToolParser.HERMES,
        f'<tool_call>\n{{"name": "get_weather", "arguments": {PARIS}}}\n</tool_call>',
        WEATHER,
    ),
    "hermes, two after content": (
        ToolParser.HERMES,
        (
            f'Let me see.\n<tool_call>\n{{"name": "get_weather", "arguments": {PARIS}}}\n</tool_call>\n'
            '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>\n'
        ),
        [Content("Let me see."), *WEATHER, *NOW],
    ),
    "hermes, arguments before the name": (
        ToolParser.HERMES,
        '<tool_call>{"arguments": {"city": "Rome"}, "name": "get_weather"}</tool_call> Done.',
        [*call(0, "get_weather", '{"city": "Rome"}'), Content(" Done.")],
    ),
    "hermes, no arguments": (
        ToolParser.HERMES,
        '<tool_call>{"name": "now"}</tool_call>',
        call(0, "now", "{}"),
    ),
    "hermes, arguments as text": (
        ToolParser.HERMES,
        '<tool_call>{"name": "now", "arguments": "{\\"a\\": 1}"}</tool_call>',
        call(0, "now", '{"a": 1}'),
    ),
    "hermes, the end missing": (
        ToolParser.HERMES,
        '<tool_call>{"name": "now", "arguments": {}}',
        call(0, "now", "{}"),
    ),
    "hermes, cut off": (
        ToolParser.HERMES,
        '<tool_call>{"name": "get_weather", "arguments": {"city": "Pa',
        call(0, "get_weather", '{"city": "Pa'),
    ),
    "llama, plain": (
        ToolParser.LLAMA3_JSON,
        f'{{"name": "get_weather", "parameters": {PARIS}}}',
        WEATHER,
    ),
    "llama, with a type": (
        ToolParser.LLAMA3_JSON,
        '{"type": "function", "name": "get_weather", "parameters": {"city": "Rome"}}',
        call(0, "get_weather", '{"city": "Rome"}'),
    ),
    "llama, tag and two": (
        ToolParser.LLAMA3_JSON,
        f'<|python_tag|>{{"name": "get_weather", "parameters": {PARIS}}}; {{"name": "now", "parameters": {{}}}}',
        [*WEATHER, *NOW],
    ),
    "mistral, a list": (
        ToolParser.MISTRAL,
        f'[TOOL_CALLS] [{{"name": "get_weather", "arguments": {PARIS}}}, {{"name": "now", "arguments": {{}}}}]',
        [*WEATHER, *NOW],
    ),
    "mistral, names": (
        ToolParser.MISTRAL,
        f"I look.[TOOL_CALLS]get_weather[ARGS]{PARIS}[TOOL_CALLS]now[CALL_ID]a1b2c3d4e[ARGS]{{}}",
        [Content("I look."), *WEATHER, *NOW],
    ),
    "mistral, names without a mark": (ToolParser.MISTRAL, f"[TOOL_CALLS]get_weather{PARIS}", WEATHER),
    "python, fenced": (
        ToolParser.PYTHONIC,
        "Sure.\n```tool_code\nget_weather(city='Rome', days=[1, 2])\n```",
        [Content("Sure."), *call(0, "get_weather", '{"city": "Rome", "days": [1, 2]}')],
    ),
    "python, a list": (
        ToolParser.PYTHONIC,
        "[get_weather(city='Ro]me'), now()]",
        [*call(0, "get_weather", '{"city": "Ro]me"}'), *NOW],
    ),
    "python, JSON in a fence that does not close": (
        ToolParser.PYTHONIC,
        '```json\n{"name": "now", "parameters": {}}\n',
        call(0, "now", "{}"),
    ),
    "python, plain JSON": (
        ToolParser.PYTHONIC,
        '{"name": "get_weather", "parameters": {"city": "Rome"}}',
        call(0, "get_weather", '{"city": "Rome"}'),
    ),
}

CONTENT = {
    "hermes, an unknown function": (ToolParser.HERMES, '<tool_call>{"name": "rm", "arguments": {}}</tool_call>'),
    "hermes, no JSON": (ToolParser.HERMES, "a <tool_call> is written so: <tool_call>{...}</tool_call>."),
    "hermes, arguments that are no object": (
        ToolParser.HERMES,
        '<tool_call>{"name": "now", "arguments": 5}</tool_call>',
    ),
    "hermes, cut off in the name": (ToolParser.HERMES, 'Well <tool_call>\n{"name": "no'),
    "hermes, cut off in the mark": (ToolParser.HERMES, "Well <tool_ca"),
    "llama, JSON that is an answer": (ToolParser.LLAMA3_JSON, '{"name": "Ann", "age": 5}; and so on'),
    "llama, a call after words": (ToolParser.LLAMA3_JSON, 'Call {"name": "now", "parameters": {}}'),
    "mistral, a name nobody offered": (ToolParser.MISTRAL, '[TOOL_CALLS]rm[ARGS]{"a": 1}'),
    "mistral, an empty list": (ToolParser.MISTRAL, "[TOOL_CALLS][]"),
    "python, code": (ToolParser.PYTHONIC, "```tool_code\nprint(1)\n```\nprints 1"),
    "python, a list of numbers": (ToolParser.PYTHONIC, "[1, 2]"),
    "python, values that are no constants": (ToolParser.PYTHONIC, "[now(a=__import__('os'))]"),
    "python, one known call and one unknown": (ToolParser.PYTHONIC, "[now(), rm()]"),
    "white space only": (ToolParser.HERMES, " \n "),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_are_read_as_the_family_writes_them(name):
    parser, text, expected = CALLS[name]
    assert read(reader_of(parser), [text]) == expected


@pytest.mark.parametrize("name", CALLS)
def test_calls_that_come_character_by_character_are_the_same(name):
    parser, text, expected = CALLS[name]
    assert read(reader_of(parser), text) == expected


@pytest.mark.parametrize("name", CONTENT)
@pytest.mark.parametrize("cut", [False, True], ids=["whole", "in characters"])
def test_text_that_is_no_valid_call_comes_back_as_content_to_the_last_character(name, cut):
    parser, text = CONTENT[name]
    assert read(reader_of(parser), text if cut else [text]) == [Content(text)]


FRAGMENTS = st.sampled_from(
    [
        "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "```tool_code", "```", "```json",
        '{"name": "now", "arguments": {}}', '{"name": "get_weather", "parameters": {"city": "a}\\"b"}}', "now", "{",
        "}", "[", "]", ";", ",", '"', "'", "\\", " ", "\n", "x", "now(a=1)", '{"name": "rm", "arguments": {"a": [1]}}',
        '{"arguments": {"é": 1}, "name": "now"}', "<think>", "</think>", "<", "</",
    ]
)  # fmt: skip
TEXTS = st.lists(FRAGMENTS, max_size=10).map("".join)
CUTS = st.lists(st.integers(0, 200), max_size=12)


def pieces_of(text: str, cuts: list[int]) -> list[str]:
    ends = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    return [text[start:end] for start, end in pairwise(ends)]


@settings(max_examples=200, deadline=None)
@given(
    TEXTS,
    CUTS,
    st.sampled_from([*PARSERS, ToolParser.NONE]),
    st.sampled_from([ReasoningParser.NONE, ReasoningParser.QWEN3]),
    st.fixed_dictionaries(
        {"is_open": st.booleans(), "forced": st.sampled_from([None, ForcedCall(None), ForcedCall("now")])}
    ),
)
def test_any_text_gives_the_same_parts_in_whatever_pieces_it_comes(text, cuts, tools, reasoning, fields):
    whole = read(reader_of(tools, reasoning, **fields), [text])
    pieces = read(reader_of(tools, reasoning, **fields), pieces_of(text, cuts))
    characters = read(reader_of(tools, reasoning, **fields), text)
    assert whole == pieces == characters
    starts = [part for part in whole if isinstance(part, CallStart)]
    assert [start.number for start in starts] == list(range(len(starts)))


@settings(max_examples=150, deadline=None)
@given(TEXTS, st.sampled_from(PARSERS))
def test_nothing_but_white_space_and_frames_of_calls_is_lost(text, tools):
    parts = read(reader_of(tools), text)
    if not any(isinstance(part, CallStart) for part in parts):
        assert "".join(part.text for part in parts) == text


def test_arguments_go_out_as_they_come():
    reader = reader_of(ToolParser.HERMES)
    assert reader.feed('<tool_call>{"name": "get_weather", "arguments": {') == [
        CallStart(0, "get_weather"),
        CallArguments(0, "{"),
    ]
    assert reader.feed('"city": "Pa') == [CallArguments(0, '"city": "Pa')]
    assert reader.feed('ris"}}') == [CallArguments(0, 'ris"}')]
    assert reader.feed("</tool_call>") == []


def test_a_named_call_is_all_arguments():
    reader = reader_of(ToolParser.HERMES, forced=ForcedCall("get_weather"))
    assert read(reader, ' {"city": "Rome"} ') == call(0, "get_weather", '{"city": "Rome"}')


def test_required_calls_come_in_a_json_list():
    text = '[{"name": "get_weather", "arguments": {"city": "Rome"}}, {"name": "now", "arguments": {}}]'
    assert read(reader_of(ToolParser.NONE, forced=ForcedCall(None)), text) == [
        *call(0, "get_weather", '{"city": "Rome"}'),
        *NOW,
    ]


@pytest.mark.parametrize(
    ("text", "is_open", "expected"),
    [
        ("<think>\nhm, so\n</think>\n\nHi.", False, [Reasoning("hm, so"), Content("Hi.")]),
        ("hm\n</think>\n\nHi <think>.", True, [Reasoning("hm"), Content("Hi <think>.")]),
        ("Hi </think>", False, [Content("Hi </think>")]),
        ("<think>\n\n</think>\n\nHi", False, [Content("Hi")]),
        ("<think>cut off </thi", False, [Reasoning("cut off </thi")]),
        ("<thin", False, [Content("<thin")]),
    ],
)
@pytest.mark.parametrize("cut", [False, True], ids=["whole", "in characters"])
def test_reasoning_is_told_from_the_answer(text, is_open, expected, cut):
    reader = reader_of(ToolParser.NONE, ReasoningParser.QWEN3, is_open=is_open)
    assert read(reader, text if cut else [text]) == expected


def test_calls_after_reasoning_are_calls_and_in_it_they_are_not():
    text = '<think>maybe <tool_call>{"name": "now"}</tool_call></think><tool_call>{"name": "now"}</tool_call>'
    assert read(reader_of(ToolParser.HERMES, ReasoningParser.QWEN3), text) == [
        Reasoning('maybe <tool_call>{"name": "now"}</tool_call>'),
        *call(0, "now", "{}"),
    ]


def test_what_a_tool_parser_holds_back_comes_out_at_the_end_also_behind_reasoning():
    assert read(reader_of(ToolParser.HERMES, ReasoningParser.QWEN3), ["<think>a</think>b <tool"]) == [
        Reasoning("a"),
        Content("b <tool"),
    ]


@pytest.mark.parametrize(
    ("template", "tools", "reasoning"),
    [
        ("<tool_call></tool_call> ... </think>", ToolParser.HERMES, ReasoningParser.QWEN3),
        ("{{ '[TOOL_CALLS]' }}", ToolParser.MISTRAL, ReasoningParser.NONE),
        ("Environment: ipython ... <|python_tag|>", ToolParser.LLAMA3_JSON, ReasoningParser.NONE),
        ("<start_of_turn>", ToolParser.PYTHONIC, ReasoningParser.NONE),
        (None, ToolParser.PYTHONIC, ReasoningParser.NONE),
    ],
)
def test_the_chat_template_tells_how_a_model_writes(template, tools, reasoning):
    settled = answer_format(ToolParser.AUTO, ReasoningParser.AUTO, template)
    assert settled == AnswerFormat(tools, reasoning)
    assert answer_format(ToolParser.NONE, ReasoningParser.NONE, template) == AnswerFormat(
        ToolParser.NONE, ReasoningParser.NONE
    )


def test_a_prompt_that_opens_the_reasoning_is_noticed():
    qwen3 = AnswerFormat(ToolParser.NONE, ReasoningParser.QWEN3)
    assert qwen3.is_open("<|im_start|>assistant\n<think>\n")
    assert not qwen3.is_open("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    deepseek = AnswerFormat(ToolParser.NONE, ReasoningParser.DEEPSEEK_R1)
    assert deepseek.is_open("<｜Assistant｜>")
    assert not deepseek.is_open("<｜Assistant｜></think>")


def test_a_long_argument_in_single_characters_arrives_whole():
    argument = json.dumps({"text": "x" * 20_000})
    text = f'<tool_call>{{"name": "now", "arguments": {argument}}}</tool_call>'
    assert read(reader_of(ToolParser.HERMES), text) == call(0, "now", argument)
