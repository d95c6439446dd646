"""What the openai client makes of tool calls, reasoning, forms of answers, log probabilities and several choices.

The app runs in this process over a runner whose answers are given texts, one token a byte.
"""

import json
import math

import openai
import pydantic
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from in_process import CONTEXT, MODEL, ServedApp, running_app
from text_runner import TextCodecOfBytes
from tidegate_core.launch import ReasoningParser, ToolParser
from tidegate_engine.request import FinishReason, ServiceClass, TokenChunk, TokenLogprobs
from tidegate_engine.server.parsers.choice import AnswerFormat
from tidegate_engine.server.plans import seed_of
from tidegate_engine.server.stream import ChoiceText, Stopping
from tidegate_engine.text.chat_template import DEFAULT_OPTIONS

pytestmark = pytest.mark.anyio

HERMES = AnswerFormat(ToolParser.HERMES, ReasoningParser.QWEN3)
HELLO = [{"role": "user", "content": "hello"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather now",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
NOW = {"type": "function", "function": {"name": "now"}}
TWO_CALLS = (
    'Let me see.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Reykjavík"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def client_of(served: ServedApp) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url="http://engine/v1", api_key="x", http_client=served.client, max_retries=0)


async def ask(served: ServedApp, **fields):
    return await client_of(served).chat.completions.create(**{"model": MODEL, "messages": HELLO, **fields})


async def complete(served: ServedApp, **fields):
    return await client_of(served).completions.create(**{"model": MODEL, "prompt": "ab", **fields})


def calls_of(message) -> list[tuple[str, str]]:
    return [(call.function.name, call.function.arguments) for call in message.tool_calls or []]


# --- tools


async def test_tool_calls_are_told_from_content():
    async with running_app(answer=TWO_CALLS, answers=HERMES) as served:
        answer = await ask(served, tools=[WEATHER, NOW])
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me see."
    assert calls_of(choice.message) == [("get_weather", '{"city": "Reykjavík"}'), ("now", "{}")]
    ids = [call.id for call in choice.message.tool_calls]
    assert len(set(ids)) == 2
    assert all(len(call_id) == 9 and call_id.isalnum() for call_id in ids), "the only kind Mistral's templates take"


async def test_streamed_tool_calls_add_up_to_the_whole_ones_name_first_and_nothing_twice():
    async with running_app(answer=TWO_CALLS, answers=HERMES) as served:
        chunks = [chunk async for chunk in await ask(served, tools=[WEATHER, NOW], stream=True)]
    deltas = [chunk.choices[0].delta for chunk in chunks]
    calls: dict[int, dict[str, str]] = {}
    for entry in (entry for delta in deltas for entry in delta.tool_calls or []):
        if entry.index not in calls:
            assert entry.id
            assert entry.function.name
            calls[entry.index] = {"name": entry.function.name, "arguments": ""}
        else:
            assert (entry.id, entry.function.name) == (None, None), "only once"
        calls[entry.index]["arguments"] += entry.function.arguments
    assert list(calls.values()) == [
        {"name": "get_weather", "arguments": '{"city": "Reykjavík"}'},
        {"name": "now", "arguments": "{}"},
    ]
    assert "".join(delta.content or "" for delta in deltas) == "Let me see."
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


async def test_the_clients_own_stream_helper_understands_the_calls():
    async with (
        running_app(answer=TWO_CALLS, answers=HERMES) as served,
        client_of(served).chat.completions.stream(
            model=MODEL, messages=HELLO, tools=[{**WEATHER, "function": {**WEATHER["function"], "strict": True}}, NOW]
        ) as stream,
    ):
        completion = await stream.get_final_completion()
    message = completion.choices[0].message
    assert calls_of(message) == [("get_weather", '{"city": "Reykjavík"}'), ("now", "{}")]


async def test_where_several_calls_are_not_wanted_the_answer_ends_after_the_first():
    async with running_app(answer=TWO_CALLS, answers=HERMES) as served:
        answer = await ask(served, tools=[WEATHER, NOW], parallel_tool_calls=False)
        await served.eventually_idle()
    assert calls_of(answer.choices[0].message) == [("get_weather", '{"city": "Reykjavík"}')]
    assert answer.choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize("fields", [{}, {"tools": [WEATHER], "tool_choice": "none"}, {"tools": [NOW]}])
async def test_a_call_of_what_was_not_offered_is_content(fields):
    text = '<tool_call>{"name": "get_weather", "arguments": {}}</tool_call>'
    async with running_app(answer=text, answers=HERMES) as served:
        answer = await ask(served, **fields)
    assert answer.choices[0].message.content == text
    assert answer.choices[0].message.tool_calls is None
    assert answer.choices[0].finish_reason == "stop"


async def test_an_answer_cut_off_in_a_call_says_so():
    async with running_app(answer=TWO_CALLS, answers=HERMES) as served:
        answer = await ask(served, tools=[WEATHER, NOW], max_tokens=75)
    assert answer.choices[0].finish_reason == "length"
    assert calls_of(answer.choices[0].message) == [("get_weather", '{"city": "Reyk')]


async def test_a_conversation_with_calls_and_results_reaches_the_template_with_arguments_as_objects():
    codec = TextCodecOfBytes()
    async with running_app(answer=TWO_CALLS, answers=HERMES, codec=codec) as served:
        first = (await ask(served, tools=[WEATHER, NOW])).choices[0].message
        results = [{"role": "tool", "tool_call_id": call.id, "content": "12 °C"} for call in first.tool_calls]
        await ask(served, tools=[WEATHER, NOW], messages=[*HELLO, first.model_dump(), *results])
    messages, options = codec.rendered[-1]
    assert [call["function"] for call in messages[1]["tool_calls"]] == [
        {"name": "get_weather", "arguments": {"city": "Reykjavík"}},
        {"name": "now", "arguments": {}},
    ]
    assert messages[2] == {"role": "tool", "content": "12 °C", "tool_call_id": first.tool_calls[0].id}
    assert options.tools == (WEATHER, NOW)


async def test_a_named_function_is_called_and_its_arguments_follow_its_schema():
    city = {**WEATHER, "function": {**WEATHER["function"], "parameters": PLACE}}
    async with running_app(answer="", answers=HERMES) as served:
        answer = await ask(
            served, tools=[NOW, city], tool_choice={"type": "function", "function": {"name": "get_weather"}}
        )
        streamed = await ask(
            served,
            tools=[NOW, city],
            tool_choice={"type": "function", "function": {"name": "get_weather"}},
            stream=True,
        )
        text = ""
        async for chunk in streamed:
            text += "".join(entry.function.arguments for entry in chunk.choices[0].delta.tool_calls or [])
    (call,) = calls_of(answer.choices[0].message)
    assert call[0] == "get_weather"
    assert_is_place(json.loads(call[1]))
    assert text == call[1]
    assert answer.choices[0].message.content is None


async def test_required_calls_are_of_offered_functions_with_valid_arguments():
    tools = [{"type": "function", "function": {"name": name, "parameters": PLACE}} for name in ("one", "other")]
    async with running_app(answer="", answers=HERMES) as served:
        answer = await ask(served, tools=tools, tool_choice="required", parallel_tool_calls=False)
    (call,) = calls_of(answer.choices[0].message)
    assert call[0] in {"one", "other"}
    assert_is_place(json.loads(call[1]))
    assert answer.choices[0].finish_reason == "tool_calls"


async def test_marks_of_calls_are_shown_to_their_parser_although_they_are_special_tokens():
    codec = TextCodecOfBytes()
    mistral = AnswerFormat(ToolParser.MISTRAL, ReasoningParser.NONE)
    async with running_app(answer='[TOOL_CALLS]now[ARGS]{"a": 1}', answers=mistral, codec=codec) as served:
        called = await ask(served, tools=[NOW])
        await ask(served)
        await ask(served, extra_body={"skip_special_tokens": False})
    assert calls_of(called.choices[0].message) == [("now", '{"a": 1}')]
    assert codec.shown == [{"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"}, frozenset(), None]


# --- reasoning


async def test_reasoning_is_a_field_of_its_own_and_its_tokens_are_counted():
    async with running_app(answer="<think>\nwell\n</think>\n\nHi.", answers=HERMES) as served:
        answer = await ask(served)
        chunks = [chunk async for chunk in await ask(served, stream=True)]
    message = answer.choices[0].message
    assert message.content == "Hi."
    assert message.reasoning_content == message.reasoning == "well"
    assert answer.usage.completion_tokens_details.reasoning_tokens == len(">\nwell\n</think>")  # from where it is sure
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert "".join(getattr(delta, "reasoning_content", "") for delta in deltas) == "well"
    assert "".join(delta.content or "" for delta in deltas) == "Hi."


async def test_a_prompt_that_ends_in_the_reasoning_begins_the_answer_there():
    async with running_app(answer="well</think>Hi.", answers=HERMES) as served:
        answer = await ask(served, extra_body={"chat_template_kwargs": {"ending": "<think>\n"}})
    assert answer.choices[0].message.content == "Hi."
    assert answer.choices[0].message.reasoning_content == "well"


async def test_a_form_of_the_answer_is_refused_where_the_prompt_opens_the_reasoning():
    async with running_app(answer="{}", answers=HERMES) as served:
        with pytest.raises(openai.BadRequestError, match="enable_thinking") as refused:
            await ask(
                served,
                response_format={"type": "json_object"},
                extra_body={"chat_template_kwargs": {"ending": "<think>\n"}},
            )
    assert refused.value.param == "response_format"


# --- forms of answers

PLACE = {
    "type": "object",
    "properties": {"kind": {"enum": ["town", "lake"]}, "size": {"$ref": "#/$defs/size"}},
    "required": ["kind", "size"],
    "additionalProperties": False,
    "$defs": {"size": {"type": "integer", "minimum": 1, "maximum": 9}},
}


def assert_is_place(value: dict) -> None:
    assert set(value) == {"kind", "size"}
    assert value["kind"] in {"town", "lake"}
    assert 1 <= value["size"] <= 9


class Place(pydantic.BaseModel):
    kind: str = pydantic.Field(pattern="^(town|lake)$")
    size: int = pydantic.Field(ge=1, le=9)


async def test_parse_gives_the_clients_own_model():
    async with running_app(answer="") as served:
        answer = await client_of(served).chat.completions.parse(model=MODEL, messages=HELLO, response_format=Place)
    place = answer.choices[0].message.parsed
    assert place.kind in {"town", "lake"}
    assert 1 <= place.size <= 9
    assert answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("fields", "is_good"),
    [
        ({"response_format": {"type": "json_object"}}, lambda text: isinstance(json.loads(text), dict)),
        ({"guided_json": PLACE}, lambda text: assert_is_place(json.loads(text)) is None),
        ({"structured_outputs": {"json": json.dumps(PLACE)}}, lambda text: assert_is_place(json.loads(text)) is None),
        ({"guided_regex": "[ab]{3}"}, lambda text: len(text) == 3 and set(text) <= set("ab")),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, lambda text: text in {"yes", "no"}),
        ({"guided_choice": ["yes", "no"]}, lambda text: text in {"yes", "no"}),
        ({"guided_grammar": 'start: "a" "b"'}, lambda text: text == "ab"),
    ],
    ids=["json object", "guided_json", "json as text", "regex", "choice", "guided_choice", "grammar"],
)
async def test_an_answer_has_the_form_that_was_asked_for(fields, is_good):
    async with running_app(answer="") as served:
        chat = await ask(served, extra_body=fields, n=2)
        text = await complete(served, extra_body=fields)
    for choice in chat.choices:
        assert is_good(choice.message.content), choice.message.content
    assert is_good(text.choices[0].text)


# --- log probabilities


async def test_chat_logprobs_say_token_bytes_and_the_best_others():
    async with running_app(answer="né") as served:
        answer = await ask(served, logprobs=True, top_logprobs=2)
        without = await ask(served)
    content = answer.choices[0].logprobs.content
    assert b"".join(bytes(token.bytes) for token in content).decode() == "né"
    assert [token.logprob for token in content] == [pytest.approx(-math.log(2))] * 3
    assert [top.token for top in content[0].top_logprobs] == ["n", "o"]
    assert content[1].token == "�"  # half a character
    assert without.choices[0].logprobs is None


async def test_streamed_logprobs_are_those_of_the_whole_answer_also_behind_stop_strings_and_calls():
    fields = {"logprobs": True, "tools": [WEATHER, NOW], "stop": ["</tool_call>\n<"]}
    async with running_app(answer=TWO_CALLS, answers=HERMES) as served:
        whole = (await ask(served, **fields)).choices[0]
        chunks = [chunk async for chunk in await ask(served, **fields, stream=True)]
    streamed = [token.token for chunk in chunks for token in (chunk.choices[0].logprobs or NoLogprobs).content]
    assert streamed == [token.token for token in whole.logprobs.content]
    assert (
        b"".join(bytes(token.bytes) for token in whole.logprobs.content).decode()
        == TWO_CALLS.partition("</tool_call>\n<")[0]
    )
    assert calls_of(whole.message) == [("get_weather", '{"city": "Reykjavík"}')]


class NoLogprobs:
    content = ()


async def test_completions_have_the_older_shape_with_offsets():
    async with running_app(answer="né!") as served:
        choice = (await complete(served, logprobs=1)).choices[0]
        none = (await complete(served)).choices[0]
    assert choice.logprobs.tokens == ["n", "�", "�", "!"]
    assert choice.logprobs.text_offset == [0, 1, 1, 2]
    assert choice.logprobs.top_logprobs[0] == {"n": pytest.approx(-math.log(2))}
    assert none.logprobs is None


async def test_an_echoed_prompt_comes_with_its_own_logprobs():
    async with running_app(answer="cd") as served:
        choice = (await complete(served, echo=True, logprobs=0)).choices[0]
        ids = (await complete(served, prompt=list(b"ab"), echo=True)).choices[0]
        chunks = [chunk async for chunk in await complete(served, echo=True, stream=True)]
    assert choice.text == ids.text == "abcd"
    assert choice.logprobs.tokens == ["a", "b", "c", "d"]
    assert choice.logprobs.token_logprobs == [None, *[pytest.approx(-math.log(2))] * 3]
    assert choice.logprobs.text_offset == [0, 1, 2, 3]
    assert "".join(chunk.choices[0].text for chunk in chunks) == "abcd"


async def test_prompt_logprobs_are_vllms():
    async with running_app(answer="c") as served:
        choice = (await complete(served, prompt="abc", extra_body={"prompt_logprobs": 1})).choices[0]
        chat = await ask(served, extra_body={"prompt_logprobs": 0})
    assert choice.prompt_logprobs[0] is None
    assert choice.prompt_logprobs[1] == {
        str(ord("b")): {"logprob": pytest.approx(-math.log(2)), "rank": 1, "decoded_token": "b"}
    }
    assert len(choice.prompt_logprobs) == 3
    assert len(chat.prompt_logprobs) == len("1 messages")


async def test_choices_of_one_prompt_share_its_logprobs():
    async with running_app(answer="c") as served:
        answer = await complete(served, prompt=["ab", "xyz"], n=2, echo=True, logprobs=0)
    assert [choice.logprobs.tokens for choice in answer.choices] == [list("abc")] * 2 + [list("xyzc")] * 2


async def test_more_prompt_logprobs_than_memory_should_hold_are_refused():
    async with running_app(context=2**13) as served:
        with pytest.raises(openai.BadRequestError, match="ask for fewer") as refused:
            await complete(served, prompt=[1] * 7000, max_tokens=1, extra_body={"prompt_logprobs": 20})
    assert refused.value.param == "prompt_logprobs"


TOKENS = st.lists(st.sampled_from(list("ab<é🌊".encode())), max_size=24)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    TOKENS,
    st.lists(st.integers(0, 24), max_size=6),
    st.lists(st.text(alphabet="ab<é🌊", min_size=1, max_size=3), max_size=2).map(tuple),
    st.booleans(),
)
def test_tokens_with_logprobs_are_those_of_the_text_for_any_chunking(tokens, cuts, stops, keeps_end):
    def read(ends: list[int]) -> tuple[str, list]:
        choice = ChoiceText(TextCodecOfBytes().decoder(), Stopping(stops, keeps_end))
        text, placed, start = "", [], 0
        for end in ends:
            ids = tuple(tokens[start:end])
            reason = FinishReason.LENGTH if end == len(tokens) else None
            delta = choice.feed(TokenChunk(ids, reason, tuple(TokenLogprobs(token, -1.0) for token in ids)))
            text += delta.text
            placed += delta.tokens
            start = end
            if delta.finish_reason is not None:
                break
        return text, placed

    whole = read([len(tokens)])
    pieces = read([*sorted({cut for cut in cuts if cut < len(tokens)}), len(tokens)])
    assert whole == pieces
    text, placed = whole
    assert [token.logprobs.token_id for token in placed] == tokens[: len(placed)]
    spelt = bytes(token.logprobs.token_id for token in placed).decode("utf-8", "replace")
    assert spelt.startswith(text.rstrip("�")), "no text without its tokens"
    assert all(token.start <= len(text) for token in placed)


# --- choices, sampling, usage


async def test_every_choice_has_its_own_text_index_and_seed():
    async with running_app() as served:
        seen = []
        run = served.gate.run

        def noting(batch):
            seen.extend((row.request_id, row.sampling.seed) for row in batch.rows if row.sampling)
            return run(batch)

        served.gate.run = noting
        answer = await ask(served, n=3, seed=7, max_tokens=2)
        many = await complete(served, prompt=["a", "bc"], n=2, max_tokens=2)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert answer.usage.prompt_tokens == len("user: hello\n")
    assert answer.usage.completion_tokens == 6
    seeds = {int(request_id.rpartition("-")[2]): seed for request_id, seed in seen if seed is not None}
    assert seeds == {0: 7, 1: seed_of(7, 1), 2: seed_of(7, 2)}
    assert len(set(seeds.values())) == 3
    texts = [choice.text for choice in many.choices]
    assert texts[0] == texts[1] != texts[2] == texts[3], "the simulation draws the same for the same prompt"
    assert many.usage.prompt_tokens == 3


async def test_more_choices_than_slots_all_end():
    async with running_app(slots=2) as served:
        answer = await complete(served, n=16, max_tokens=3)
    assert [len(choice.text) for choice in answer.choices] == [3] * 16


async def test_more_choices_than_an_idle_engine_takes_are_refused_for_good_and_not_told_to_come_back():
    async with running_app(slots=2, max_queue=4) as served:
        as_many_as_fit = await complete(served, n=6, max_tokens=3)
        with pytest.raises(openai.BadRequestError, match="7 choices in one request, but this engine runs and queues 6"):
            await complete(served, n=7, max_tokens=3)
        with pytest.raises(openai.BadRequestError, match="8 choices in one request"):
            await complete(served, prompt=["a", "b"], n=4, max_tokens=3)
        assert (len(as_many_as_fit.choices), served.load().arrivals) == (6, 6)


async def test_sampling_fields_reach_the_engine_as_the_client_sent_them():
    fields = {"min_p": 0.1, "repetition_penalty": 1.2, "min_tokens": 3, "top_k": 5}
    async with running_app() as served:
        await ask(
            served,
            presence_penalty=0.5,
            frequency_penalty=-0.5,
            logit_bias={"5": 3, 7: -100},
            max_tokens=4,
            extra_body=fields,
        )
        sampling = served.gate.batch.rows[0].sampling
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (0.5, -0.5, 1.2)
    assert sampling.logit_bias == ((5, 3.0), (7, -100.0))
    assert (sampling.min_p, sampling.min_tokens, sampling.top_k) == (0.1, 3, 5)


async def test_a_stop_string_is_part_of_the_answer_where_it_is_wanted_and_waits_for_min_tokens():
    async with running_app(answer="one. two. three.") as served:
        cut = await complete(served, stop=".")
        kept = await complete(served, stop=".", extra_body={"include_stop_str_in_output": True})
        later = await complete(served, stop=".", extra_body={"min_tokens": 5})
    assert [answer.choices[0].text for answer in (cut, kept, later)] == ["one", "one.", "one. two"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_that_ends_inside_a_character_is_continued_by_the_rest_of_it(stream):
    whole = "日 is a day".encode()
    async with running_app(answer=whole[2:].decode(errors="surrogateescape")) as served:
        answer = await complete(served, prompt=[*b"The sign ", *whole[:2]], max_tokens=50, stream=stream)
        parts = [chunk async for chunk in answer] if stream else [answer]
    assert "".join(part.choices[0].text for part in parts) == "日 is a day"


async def test_a_prompt_is_cut_to_its_last_tokens():
    async with running_app(answer="x") as served:
        answer = await complete(served, prompt="abcdef", echo=True, extra_body={"truncate_prompt_tokens": 2})
        most = await complete(
            served, prompt=[1] * (CONTEXT - 1), max_tokens=6, extra_body={"truncate_prompt_tokens": -1}
        )
    assert answer.usage.prompt_tokens == 2
    assert answer.choices[0].text == "efx"
    assert most.usage.prompt_tokens == CONTEXT - 6


async def test_the_flex_tier_is_the_spot_class_and_answers_say_what_was_given():
    codec = TextCodecOfBytes()
    async with running_app(answer="hi", codec=codec) as served:
        terms = []
        submit = served.engine.submit

        def noting(request_id, prompt, sampling, request_terms, constraint):
            terms.append(request_terms)
            return submit(request_id, prompt, sampling, request_terms, constraint)

        served.engine.submit = noting
        flex = await ask(served, service_tier="flex", extra_body={"priority": -3, "cache_salt": "mine"})
        auto = await ask(served, service_tier="auto")
        none = await ask(served)
    assert [answer.service_tier for answer in (flex, auto, none)] == ["flex", "default", None]
    assert [each.service_class for each in terms] == [
        ServiceClass.SPOT,
        ServiceClass.GUARANTEED,
        ServiceClass.GUARANTEED,
    ]
    assert terms[0].priority == -3
    assert terms[0].cache_salt != terms[1].cache_salt == terms[2].cache_salt


async def test_templates_get_their_own_variables_and_a_message_to_continue():
    codec = TextCodecOfBytes()
    async with running_app(answer="hi", codec=codec) as served:
        await ask(served)
        extra = {"continue_final_message": True, "add_generation_prompt": False, "chat_template_kwargs": {"a": 1}}
        await ask(served, extra_body=extra)
    assert codec.rendered[0][1] == DEFAULT_OPTIONS
    options = codec.rendered[1][1]
    assert options.continues_final_message
    assert options.variables == {"a": 1}


async def test_more_prompts_than_the_tokenizer_can_take_are_refused_with_a_time_to_come_back():
    async with running_app(max_backlog=0) as served:
        with pytest.raises(openai.InternalServerError) as refused:
            await ask(served)
        await complete(served, prompt=[1], max_tokens=1)  # token ids need no tokenizer
    assert refused.value.status_code == 503
    assert refused.value.code == "tokenizer_busy"
    assert int(refused.value.response.headers["retry-after"]) >= 1
