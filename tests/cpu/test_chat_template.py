from datetime import UTC, datetime

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from tidegate_core.errors import BadLaunch
from tidegate_engine.text.chat_template import DEFAULT_OPTIONS, ChatOptions, ChatRefused, ChatTemplate
from tidegate_engine.text.tool_prompt import without_tools

CHATML = """{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}"""
GEMMA = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- set prefix = messages[0]['content'] + '\\n\\n' -%}{%- set rest = messages[1:] -%}
{%- else -%}
    {%- set prefix = "" -%}{%- set rest = messages -%}
{%- endif -%}
{%- for message in rest -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- set role = "model" if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '\\n' + (prefix if loop.first else "") + message['content'] | trim }}<end_of_turn>
{% endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\\n' }}{%- endif -%}"""
TRICKS = """
{% set ns = namespace(count=0) %}
{% for message in messages %}
    {% if message.role == 'system' %}{% continue %}{% endif %}
    {% set ns.count = ns.count + 1 %}
    {{ message | tojson }} {{ {'é': ['<b>', 1.5, none]} | tojson(indent=2) }}
    {% if loop.index > 3 %}{% break %}{% endif %}
{% endfor %}
{{ ns.count }} {{ tools is none }} {{ bos_token }}{{ undefined_name }}
"""
CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "  Hi <b>there</b> & 'you' \n"},
    {"role": "assistant", "content": "Hello!"},
    {"role": "user", "content": "日本 😀"},
]


# As Qwen's templates write tools, calls and results.
WITH_TOOLS = """{%- if tools %}
    {{- '<|im_start|>system\\n# Tools\\n' }}
    {%- for tool in tools %}{{- tool | tojson }}{%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content }}
    {%- for tool_call in message.tool_calls or [] %}
        {{- '<tool_call>' + tool_call.function.name + (tool_call.function.arguments | tojson) + '</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}"""
TOOL = {"type": "function", "function": {"name": "depth", "parameters": {"type": "object"}}}
CALL = {"id": "c12345678", "type": "function", "function": {"name": "depth", "arguments": {"at": "Ä"}}}
CALLED = [
    {"role": "user", "content": "How deep?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "5 m", "tool_call_id": "c12345678"},
]


@pytest.mark.parametrize("text", [CHATML, GEMMA, TRICKS], ids=["chatml", "gemma", "tricks"])
def test_a_template_renders_as_transformers_renders_it(text):
    expected, _ = render_jinja_template([CHAT], chat_template=text, add_generation_prompt=True, bos_token="<bos>")

    assert ChatTemplate(text, "the template").render(CHAT, {"bos_token": "<bos>"}) == expected[0]


def test_a_templates_own_refusal_reaches_the_client_in_its_words():
    template = ChatTemplate(GEMMA, "the chat template of /models")

    with pytest.raises(ChatRefused, match=r"template of /models refuses these messages: Conversation roles must"):
        template.render([{"role": "assistant", "content": "I begin"}], {"bos_token": "<bos>"})


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        ("{{ messages[0].content + 'x' }}", [{"role": "user", "content": None}]),
        ("{{ messages[5].content.strip() }}", []),
        ("{{ messages[0]['content'] | tojson(indent='a', bogus=1) }}", CHAT),
        ("{{ 1 // (messages | length) }}", []),
    ],
)
def test_messages_a_template_stumbles_over_are_refused(text, messages):
    with pytest.raises(ChatRefused):
        ChatTemplate(text, "the template").render(messages, {})


@pytest.mark.parametrize(
    "text",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__['json'] }}",
    ],
)
def test_a_template_cannot_reach_out_of_its_sandbox(text):
    messages = list(CHAT)

    with pytest.raises(ChatRefused):
        ChatTemplate(text, "the template").render(messages, {})
    assert messages == CHAT


def test_a_broken_template_is_known_when_it_is_made():
    with pytest.raises(BadLaunch, match=r"the given chat template is not a valid chat template.*endfor"):
        ChatTemplate("{% for m in messages %}", "the given chat template")


def test_the_date_in_a_template_is_the_one_passed_in():
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", "t", now=lambda: datetime(2026, 2, 3, tzinfo=UTC))

    assert template.render([], {}) == "03 Feb 2026"


def test_tools_calls_and_variables_are_rendered_as_transformers_renders_them():
    options = ChatOptions(tools=(TOOL,), variables={"enable_thinking": False})

    expected, _ = render_jinja_template(
        [CALLED], tools=[TOOL], chat_template=WITH_TOOLS, add_generation_prompt=True, enable_thinking=False
    )

    assert ChatTemplate(WITH_TOOLS, "t").render(CALLED, {}, options) == expected[0]
    assert ChatTemplate(WITH_TOOLS, "t").takes_tools


@pytest.mark.parametrize("text", [CHATML, GEMMA], ids=["chatml", "gemma"])
@pytest.mark.parametrize("content", ["The answer is", " The answer is "])
def test_a_final_message_is_continued_as_transformers_continues_it(text, content):
    messages = [{"role": "user", "content": "Well?"}, {"role": "assistant", "content": content}]

    expected, _ = render_jinja_template(
        [messages], chat_template=text, continue_final_message=True, add_generation_prompt=False, bos_token="<bos>"
    )

    options = ChatOptions(continues_final_message=True)
    assert ChatTemplate(text, "t").render(messages, {"bos_token": "<bos>"}, options) == expected[0]


def test_a_message_that_the_template_hides_cannot_be_continued():
    with pytest.raises(ChatRefused, match="cannot be continued"):
        ChatTemplate("hi", "t").render(CHAT, {}, ChatOptions(continues_final_message=True))


def test_a_template_without_tools_is_told_of_them_in_words():
    turns, options = without_tools([{"role": "system", "content": "Be brief."}, *CALLED], ChatOptions(tools=(TOOL,)))

    text = ChatTemplate(GEMMA, "t").render(turns, {"bos_token": "<bos>"}, options)

    assert not ChatTemplate(GEMMA, "t").takes_tools
    assert "Be brief." in text
    assert '"name": "depth"' in text
    assert '<start_of_turn>model\n{"name": "depth", "parameters": {"at": "Ä"}}<end_of_turn>' in text
    assert "```tool_output\n5 m\n```" in text


def test_results_in_a_row_and_the_users_words_after_them_are_one_turn():
    result = {"role": "tool", "content": "1"}
    turns, _ = without_tools([*CALLED, result, {"role": "user", "content": "And?"}], DEFAULT_OPTIONS)

    assert [turn["role"] for turn in turns] == ["user", "assistant", "user"]
    assert turns[-1] == {"role": "user", "content": "```tool_output\n5 m\n```\n```tool_output\n1\n```\nAnd?"}
