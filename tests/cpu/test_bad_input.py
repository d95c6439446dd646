"""Whatever a client sends wrong gets an OpenAI-shaped answer that names the fault, and the engine never hears of it."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from in_process import CONTEXT, MODEL, ServedApp, running_app

pytestmark = pytest.mark.anyio

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def chat(**fields) -> str:
    return json.dumps({"model": MODEL, "messages": HELLO, **fields})


def completion(**fields) -> str:
    return json.dumps({"model": MODEL, "prompt": "x", **fields})


def call_of(function: dict) -> dict:
    return {"role": "assistant", "tool_calls": [{"type": "function", "function": function}]}


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}

# path, body, then what is answered: status, param, code (None: not looked at), words of the message
BAD = {
    "bad JSON": (CHAT, '{"model": ', 400, None, "invalid_json", "not valid JSON"),
    "no JSON at all": (CHAT, "", 400, None, "invalid_json", "not valid JSON"),
    "not UTF-8": (CHAT, b'{"model": "\xff"}', 400, None, "invalid_json", "not valid JSON"),
    "half a surrogate pair": (COMPLETIONS, '{"model": "tide", "prompt": "\\ud800"}', 400, None, "invalid_json", ""),
    "very deep JSON": (CHAT, "[" * 100_000, 400, None, "invalid_json", ""),
    "not an object": (CHAT, "[]", 400, None, "invalid_value", ""),
    "unknown model": (CHAT, chat(model="gpt-4"), 404, "model", "model_not_found", "gpt-4"),
    "unknown model, completion": (COMPLETIONS, completion(model="x"), 404, "model", "model_not_found", MODEL),
    "no model": (CHAT, json.dumps({"messages": HELLO}), 400, "model", "missing_parameter", "'model'"),
    "no messages": (CHAT, json.dumps({"model": MODEL}), 400, "messages", "missing_parameter", "'messages'"),
    "empty messages": (CHAT, chat(messages=[]), 400, "messages", "invalid_value", "at least 1"),
    "unknown role": (CHAT, chat(messages=[{"role": "god"}]), 400, "messages[0].role", "invalid_value", "'user'"),
    "image": (
        CHAT,
        chat(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
        400,
        "messages[0].content[0].type",
        "invalid_value",
        "",
    ),
    "unknown field": (CHAT, chat(temprature=1), 400, "temprature", "unknown_parameter", "temprature"),
    "field of another spelling": (CHAT, chat(**{"Top-P": 1}), 400, "Top-P", "unknown_parameter", "Top-P"),
    "field of a message": (
        CHAT,
        chat(messages=[{"role": "user", "content": "x", "Id": 1}]),
        400,
        "messages[0].Id",
        "unknown_parameter",
        "messages[0].Id",
    ),
    "text instead of messages": (CHAT, chat(messages="hello"), 400, "messages", "invalid_value", "an array"),
    "more choices than are served": (CHAT, chat(n=17), 400, "n", "invalid_value", "16"),
    "more choices of all prompts": (
        COMPLETIONS,
        completion(prompt=["x"] * 33, n=2),
        400,
        None,
        "invalid_value",
        "66 choices",
    ),
    "no choices": (CHAT, chat(n=0), 400, "n", "invalid_value", ""),
    "tool without a function": (CHAT, chat(tools=[{"type": "function"}]), 400, "tools[0].function", None, ""),
    "tool of another type": (CHAT, chat(tools=[{"type": "web_search"}]), 400, "tools[0].type", "invalid_value", ""),
    "two tools of one name": (CHAT, chat(tools=[TOOL, TOOL]), 400, None, None, "its own name"),
    "tool choice without tools": (CHAT, chat(tool_choice="required"), 400, None, None, "no 'tools'"),
    "tool choice of no tool": (
        CHAT,
        chat(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "rm"}}),
        400,
        None,
        None,
        "rm",
    ),
    "tools where none are read": (CHAT, chat(tools=[TOOL]), 400, "tools", None, "--tool-parser none"),
    "calls of a user": (
        CHAT,
        chat(messages=[{"role": "user", "tool_calls": [{"function": {"name": "f"}}]}]),
        400,
        "messages[0].tool_calls",
        None,
        "assistant",
    ),
    "arguments of a call that are no JSON": (
        CHAT,
        chat(messages=[{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]),
        400,
        "messages[0].tool_calls",
        None,
        "'f'",
    ),
    "a form and a forced tool": (
        CHAT,
        chat(tools=[TOOL], tool_choice="required", response_format={"type": "json_object"}),
        400,
        None,
        None,
        "tool_choice",
    ),
    "two forms": (
        CHAT,
        chat(response_format={"type": "json_object"}, guided_regex="a"),
        400,
        None,
        None,
        "'response_format' and 'guided_regex'",
    ),
    "no form in structured_outputs": (CHAT, chat(structured_outputs={}), 400, "structured_outputs", None, "one of"),
    "a schema that is none": (
        CHAT,
        chat(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nothing"}}}),
        400,
        "response_format.json_schema.schema",
        "invalid_grammar",
        "",
    ),
    "a schema without a name": (
        CHAT,
        chat(response_format={"type": "json_schema", "json_schema": {}}),
        400,
        "response_format.json_schema.name",
        "missing_parameter",
        "",
    ),
    "a form that there is not": (
        CHAT,
        chat(response_format={"type": "xml"}),
        400,
        "response_format.type",
        "invalid_value",
        "",
    ),
    "a broken regex": (CHAT, chat(guided_regex="("), 400, "guided_regex", "invalid_grammar", ""),
    "a broken grammar": (
        COMPLETIONS,
        completion(structured_outputs={"grammar": "start: nothing"}),
        400,
        "structured_outputs.grammar",
        "invalid_grammar",
        "",
    ),
    "top_logprobs alone": (CHAT, chat(top_logprobs=2), 400, "top_logprobs", "invalid_value", "'logprobs'"),
    "too many top_logprobs": (CHAT, chat(logprobs=True, top_logprobs=21), 400, "top_logprobs", "invalid_value", "20"),
    "logprobs as chat has them": (COMPLETIONS, completion(logprobs=True), 400, "logprobs", "invalid_value", ""),
    "prompt logprobs of a stream": (
        COMPLETIONS,
        completion(prompt_logprobs=1, stream=True),
        400,
        "prompt_logprobs",
        None,
        "'prompt_logprobs'",
    ),
    "echoed logprobs of a stream": (
        COMPLETIONS,
        completion(echo=True, logprobs=1, stream=True),
        400,
        "echo",
        None,
        "'echo'",
    ),
    "penalty": (CHAT, chat(presence_penalty=2.5), 400, "presence_penalty", "invalid_value", ""),
    "no repetition penalty": (CHAT, chat(repetition_penalty=0), 400, "repetition_penalty", "invalid_value", ""),
    "a penalty beyond numbers": (CHAT, chat(repetition_penalty=1e-300), 400, "repetition_penalty", None, "0.01"),
    "min_p": (CHAT, chat(min_p=1.5), 400, "min_p", "invalid_value", ""),
    "bias of no token": (CHAT, chat(logit_bias={"hello": 1}), 400, None, "invalid_value", ""),
    "bias of a token outside": (CHAT, chat(logit_bias={"999": 1}), 400, "logit_bias", None, "999"),
    "more tokens at least than at most": (CHAT, chat(min_tokens=9, max_tokens=8), 400, "min_tokens", None, ""),
    "a form too costly to compile": (
        CHAT,
        chat(guided_json={"type": "integer", "multipleOf": 99_999_999}),
        400,
        "guided_json",
        "invalid_grammar",
        "multipleOf",
    ),
    "a call of half a character": (
        CHAT,
        chat(messages=[call_of({"name": "f", "arguments": '{"a": "\\ud800"}'})]),
        400,
        "messages[0].tool_calls",
        None,
        "not JSON",
    ),
    "a template's variable that is a field": (
        CHAT,
        chat(chat_template_kwargs={"messages": []}),
        400,
        "chat_template_kwargs",
        None,
        "messages",
    ),
    "to continue and to begin an answer": (
        CHAT,
        chat(continue_final_message=True, add_generation_prompt=True),
        400,
        "continue_final_message",
        None,
        "exclude each other",
    ),
    "suffix": (COMPLETIONS, completion(suffix="x"), 400, "suffix", "unsupported_parameter", ""),
    "best of": (COMPLETIONS, completion(best_of=2), 400, "best_of", "unsupported_parameter", ""),
    "negative temperature": (CHAT, chat(temperature=-1), 400, "temperature", "invalid_value", "greater than"),
    "temperature NaN": (CHAT, '{"model": "tide", "messages": [], "temperature": NaN}', 400, None, None, ""),
    "temperature as text": (CHAT, chat(temperature="1"), 400, "temperature", "invalid_value", "number"),
    "top_p zero": (CHAT, chat(top_p=0), 400, "top_p", "invalid_value", ""),
    "text where a number belongs": (CHAT, chat(max_tokens="many"), 400, "max_tokens", "invalid_value", ""),
    "no tokens": (CHAT, chat(max_tokens=0), 400, "max_tokens", "invalid_value", ""),
    "seed out of range": (CHAT, chat(seed=2**64), 400, "seed", "invalid_value", ""),
    "too many stop strings": (CHAT, chat(stop=["x"] * 17), 400, "stop", "invalid_value", "at most 16"),
    "empty stop string": (CHAT, chat(stop=[""]), 400, "stop[0]", "invalid_value", ""),
    "stream options without stream": (CHAT, chat(stream_options={}), 400, "stream_options", None, "'stream'"),
    "empty prompt": (COMPLETIONS, completion(prompt=""), 400, "prompt", None, ""),
    "empty token list": (COMPLETIONS, completion(prompt=[]), 400, None, "invalid_value", "prompt"),
    "too many prompts": (COMPLETIONS, completion(prompt=["x"] * 65), 400, "prompt", "invalid_value", "at most 64"),
    "tokens among texts": (COMPLETIONS, completion(prompt=["x", 1]), 400, "prompt[1]", "invalid_value", "string"),
    "texts among tokens": (COMPLETIONS, completion(prompt=[1, "x"]), 400, "prompt[1]", "invalid_value", "integer"),
    "an empty one of several prompts": (
        COMPLETIONS,
        completion(prompt=[[1], []]),
        400,
        "prompt[1]",
        None,
        "at least 1",
    ),
    "token outside the vocabulary": (COMPLETIONS, completion(prompt=[1, 256]), 400, "prompt", None, "256"),
    "negative token": (COMPLETIONS, completion(prompt=[-1]), 400, "prompt", None, "-1"),
    "stop token outside": (COMPLETIONS, completion(stop_token_ids=[999]), 400, "stop_token_ids", None, "999"),
    "prompt as long as the context": (
        COMPLETIONS,
        completion(prompt=[1] * CONTEXT),
        400,
        "prompt",
        "context_length_exceeded",
        f"{CONTEXT} tokens",
    ),
    "prompt of more bytes than the context can hold": (
        COMPLETIONS,
        completion(prompt="x" * (CONTEXT + 1)),
        400,
        "prompt",
        "context_length_exceeded",
        "bytes",
    ),
    "conversation too long": (
        CHAT,
        chat(messages=[{"role": "user", "content": "x" * CONTEXT}]),
        400,
        "prompt",
        "context_length_exceeded",
        "",
    ),
    "one of several prompts too long": (
        COMPLETIONS,
        completion(prompt=[[1], [1] * CONTEXT]),
        400,
        "prompt",
        "context_length_exceeded",
        "",
    ),
    "body too large": (COMPLETIONS, completion(prompt="x" * 2**21), 413, None, "request_too_large", "bytes"),
    "unknown path": ("/v1/embeddings", "{}", 404, None, None, "/v1/embeddings"),
    "tokenize nothing": ("/tokenize", "{}", 400, None, "invalid_value", "prompt"),
    "detokenize what is no token": ("/detokenize", '{"tokens": [300]}', 400, "tokens", None, "300"),
}


@pytest.mark.parametrize("name", BAD)
async def test_a_wrong_request_is_refused_by_name_and_the_engine_is_untouched(name):
    path, body, status, param, code, words = BAD[name]
    async with running_app() as served:
        started = time.monotonic()
        response = await served.client.post(path, content=body)
        seconds = time.monotonic() - started
        report = served.load()
    assert_openai_error(response, status)
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    if param is not None:
        assert error["param"] == param
    if code is not None:
        assert error["code"] == code
    assert words in error["message"]
    assert (report.arrivals, report.rejects, report.running, report.waiting) == (0, 0, 0, 0)
    assert seconds < 5


DOUBLING = "\n".join(f"r{i}: r{i + 1} r{i + 1}" for i in range(60)) + '\nr60: "a"'


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_form_that_becomes_too_costly_in_the_middle_is_told_as_the_clients_fault(is_stream):
    grammar = f"start: /[bc]{{3}}/ r0\n{DOUBLING}"
    async with running_app() as served:
        response = await served.client.post(COMPLETIONS, content=completion(guided_grammar=grammar, stream=is_stream))
        text = response.text.split("data: ")[-2] if is_stream else response.text
        report = served.load()
    assert response.status_code == (200 if is_stream else 400)
    error = json.loads(text)["error"]
    assert (error["code"], error["type"]) == ("invalid_grammar", "invalid_request_error")
    assert "cannot be followed further" in error["message"]
    assert (report.running, report.kv_blocks_used) == (0, 0)


async def test_a_get_where_a_post_belongs_is_405_in_the_same_shape():
    async with running_app() as served:
        assert_openai_error(await served.client.get(CHAT), 405)


async def test_a_body_that_declares_no_length_is_cut_off_at_the_limit():
    async def endless():
        while True:
            yield b" " * 2**16

    async with running_app() as served:
        response = await served.client.post(CHAT, content=endless())
    assert_openai_error(response, 413)


COUNTLESS = {
    "messages": (CHAT, '{"model": "tide", "messages": [' + "1," * 500_000 + "1]}", "messages[0]"),
    "content parts": (
        CHAT,
        '{"model": "tide", "messages": [{"role": "user", "content": [' + "1," * 500_000 + "1]}]}",
        "messages[0].content[0]",
    ),
    "token ids": (COMPLETIONS, '{"model": "tide", "prompt": [' + "0.5," * 250_000 + "1]}", "prompt[0]"),
    "tokens": ("/detokenize", '{"tokens": [' + "0.5," * 250_000 + "1]}", "tokens[0]"),
    "empty lists": (COMPLETIONS, '{"model": "tide", "prompt": [' + "[]," * 300_000 + "[]]}", "at most 64"),
    "fields": (CHAT, chat(**{f"x{number}": 1 for number in range(60_000)}), "60000 faults"),
}


@pytest.mark.parametrize("name", COUNTLESS)
async def test_a_body_of_countless_faults_takes_no_longer_than_reading_it(name):
    path, body, words = COUNTLESS[name]
    async with running_app() as served:
        started = time.process_time()
        response = await served.client.post(path, content=body)
        seconds = time.process_time() - started
    assert_openai_error(response, 400)
    assert words in response.json()["error"]["message"]
    assert seconds < 5, "of a megabyte; spelling out every fault takes far longer"


async def test_a_full_queue_answers_503_with_retry_after():
    async with running_app(slots=1, max_queue=1) as served, saturated(served):
        response = await served.client.post(COMPLETIONS, content=completion(max_tokens=2))
        streamed = await served.client.post(COMPLETIONS, content=completion(max_tokens=2, stream=True))
        report = served.load()
    for refused in (response, streamed):
        assert_openai_error(refused, 503)
        assert refused.json()["error"]["code"] == "queue_full"
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.headers["connection"] == "close"
    assert (report.arrivals, report.rejects, report.running, report.waiting) == (4, 2, 1, 1)


async def test_every_client_that_a_full_queue_refuses_gets_its_own_answer():
    async with running_app(slots=1, max_queue=1) as served, saturated(served):
        bodies = [json.loads(completion(max_tokens=2, stream=number % 2 == 0)) for number in range(30)]
        refused = await asyncio.gather(*(served.background(COMPLETIONS, body) for body in bodies))
        report = served.load()
    assert {response.json()["error"]["code"] for response in refused} == {"queue_full"}
    assert (report.arrivals, report.rejects) == (32, 30)


async def test_a_thousand_clients_at_once_each_get_an_answer_or_a_refusal():
    async with running_app(slots=4, max_queue=60) as served:
        calls = [served.background(COMPLETIONS, json.loads(completion(max_tokens=2))) for _ in range(1000)]
        responses = await asyncio.gather(*calls)
        after = await served.client.post(COMPLETIONS, content=completion(max_tokens=2))
    answered = [response for response in responses if response.status_code == 200]
    refused = [response for response in responses if response.status_code == 503]
    assert len(answered) + len(refused) == 1000
    assert len(answered) >= 64, "what fits slots and queue is accepted"
    assert all(int(response.headers["retry-after"]) >= 1 for response in refused)
    assert after.status_code == 200


async def test_when_one_of_several_prompts_is_refused_none_of_them_runs():
    async with running_app(slots=1, max_queue=1) as served:
        with served.gate.closed():
            running = served.background(COMPLETIONS, json.loads(completion(max_tokens=200)))
            await served.eventually(lambda: served.load().running == 1)
            response = await served.client.post(COMPLETIONS, content=completion(prompt=["a", "b"], max_tokens=2))
            assert_openai_error(response, 503)
        await running
        await served.eventually_idle()
        assert served.load().completions == 1


async def test_a_draining_engine_answers_503_and_finishes_what_it_has():
    async with running_app() as served:
        with served.gate.closed():
            running = served.background(COMPLETIONS, json.loads(completion(max_tokens=2)))
            await served.eventually(lambda: served.load().running == 1)
            served.engine.drain()
            response = await served.client.post(COMPLETIONS, content=completion())
        assert_openai_error(response, 503)
        assert response.json()["error"]["code"] == "draining"
        assert response.headers["connection"] == "close"
        assert (await running).status_code == 200


def assert_openai_error(response: httpx.Response, status: int) -> None:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]


@asynccontextmanager
async def saturated(served: ServedApp) -> AsyncIterator[None]:
    """One request runs behind the closed gate and one waits, both for long as predicted: a queue of one is full."""
    body = json.loads(completion(max_tokens=200))
    with served.gate.closed():
        running = served.background(COMPLETIONS, body)
        await served.eventually(lambda: served.load().running == 1)
        waiting = served.background(COMPLETIONS, body)
        await served.eventually(lambda: served.load().waiting == 1)
        yield
    assert (await running).status_code == (await waiting).status_code == 200
