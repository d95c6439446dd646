"""The OpenAI app over the real engine loop and the simulated runner, in this process and without sockets."""

import json
import threading
import time

import httpx
import pytest

from in_process import CONTEXT, MODEL, POISON, ServedApp, running_app
from tidegate_engine.request import FinishReason, SamplingParams
from tidegate_engine.server.choices import Piece
from tidegate_engine.server.completion_rendering import CompletionRenderer
from tidegate_engine.server.parsers.parts import Content
from tidegate_engine.server.rendering import AnswerHead
from tidegate_engine.server.schemas.generation import StreamOptions
from tidegate_engine.server.sse import events
from tidegate_engine.text.byte_codec import ByteCodec
from tidegate_engine.text.chat_template import DEFAULT_OPTIONS, ChatTemplate

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def chat(**fields) -> dict:
    return {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5, **fields}


def events_of(response: httpx.Response) -> list:
    """Documents of a stream; [DONE] must be the last event and stays as text."""
    blocks = response.text.split("\n\n")
    assert blocks.pop() == ""
    assert all(block.startswith("data: ") for block in blocks)
    *documents, done = [block.removeprefix("data: ") for block in blocks]
    assert done == "[DONE]"
    return [json.loads(document) for document in documents]


async def test_a_chat_answer_has_openais_shape():
    async with running_app() as served:
        response = await served.client.post("/v1/chat/completions", json=chat())
    body = response.json()
    assert response.status_code == 200
    assert body["object"] == "chat.completion"
    assert body["model"] == MODEL
    (choice,) = body["choices"]
    assert choice["message"]["role"] == "assistant"
    assert len(choice["message"]["content"]) == 5
    assert choice["finish_reason"] == "length"
    num_prompt = len("user: hello\n")
    assert body["usage"] == {
        "prompt_tokens": num_prompt,
        "completion_tokens": 5,
        "total_tokens": num_prompt + 5,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


async def test_a_chat_stream_sends_role_text_reason_usage_and_done():
    async with running_app() as served:
        options = {"stream": True, "stream_options": {"include_usage": True}}
        whole = await served.client.post("/v1/chat/completions", json=chat())
        response = await served.client.post("/v1/chat/completions", json=chat(**options))
    assert response.headers["content-type"].startswith("text/event-stream")
    first, *middle, last = events_of(response)
    assert first["choices"] == [
        {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in middle] == [None] * (len(middle) - 1) + ["length"]
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in middle)
    assert text == whole.json()["choices"][0]["message"]["content"]
    assert all(chunk["usage"] is None for chunk in (first, *middle))
    assert last["choices"] == []
    assert last["usage"] == whole.json()["usage"]
    assert len({chunk["id"] for chunk in (first, *middle, last)}) == 1


@pytest.mark.parametrize("options", [{}, {"stream_options": {}}, {"stream_options": {"include_usage": False}}])
async def test_usage_is_not_streamed_unless_asked_for(options):
    async with running_app() as served:
        response = await served.client.post("/v1/chat/completions", json=chat(stream=True, **options))
    assert all("usage" not in chunk and chunk["choices"] for chunk in events_of(response))


async def test_continuous_usage_counts_up_in_every_chunk():
    async with running_app() as served:
        options = {"include_usage": True, "continuous_usage_stats": True}
        response = await served.client.post("/v1/chat/completions", json=chat(stream=True, stream_options=options))
    counts = [chunk["usage"]["completion_tokens"] for chunk in events_of(response) if chunk["usage"]]
    assert counts == sorted(counts)
    assert counts[-1] == 5


@pytest.mark.parametrize(
    ("prompt", "num_prompt_tokens", "num_choices"),
    [("abc", 3, 1), ([1, 2, 3, 4], 4, 1), (["ab", "cde"], 5, 2), ([[1, 2], [3]], 3, 2)],
    ids=["text", "token ids", "texts", "lists of token ids"],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_every_form_of_prompt_is_completed_in_order(prompt, num_prompt_tokens, num_choices, stream):
    request = {"model": MODEL, "prompt": prompt, "max_tokens": 3, "stream": stream}
    if stream:
        request["stream_options"] = {"include_usage": True}
    async with running_app() as served:
        response = await served.client.post("/v1/completions", json=request)
    if stream:
        *chunks, last = events_of(response)
        texts = dict.fromkeys(range(num_choices), "")
        for chunk in chunks:
            texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
        usage = last["usage"]
    else:
        body = response.json()
        assert body["object"] == "text_completion"
        texts = {choice["index"]: choice["text"] for choice in body["choices"]}
        usage = body["usage"]
    assert {index: len(text) for index, text in texts.items()} == dict.fromkeys(range(num_choices), 3)
    assert usage["prompt_tokens"] == num_prompt_tokens
    assert usage["completion_tokens"] == 3 * num_choices


@pytest.mark.parametrize("stream", [False, True])
async def test_more_prompts_in_one_request_than_there_are_slots_are_all_answered_each_with_its_own_text(stream):
    prompts = [[number] for number in range(1, 9)]
    request = {"model": MODEL, "prompt": prompts, "max_tokens": 3, "stream": stream}
    async with running_app(slots=2) as served:
        response = await served.client.post("/v1/completions", json=request)
        alone = [await served.client.post("/v1/completions", json={**request, "prompt": [each], "stream": False})
                 for each in prompts]  # fmt: skip
    documents = events_of(response) if stream else [response.json()]
    texts = dict.fromkeys(range(8), "")
    for choice in (choice for document in documents for choice in document["choices"]):
        texts[choice["index"]] += choice["text"]
    assert list(texts.values()) == [answer.json()["choices"][0]["text"] for answer in alone]
    assert len(set(texts.values())) == 8


async def test_a_stop_string_ends_the_text_before_it_and_frees_the_rest():
    request = {"model": MODEL, "prompt": "x", "max_tokens": 100, "ignore_eos": True}
    async with running_app() as served:
        full = (await served.client.post("/v1/completions", json=request)).json()["choices"][0]["text"]
        stop = full[10:13]
        response = await served.client.post("/v1/completions", json={**request, "stop": [stop]})
        choice = response.json()["choices"][0]
        assert choice["text"] == full[: full.index(stop)]
        assert choice["finish_reason"] == "stop"
        assert response.json()["usage"]["completion_tokens"] == full.index(stop) + len(stop)
        await served.eventually_idle()
        assert (served.load().completions, served.engine.counters.cancellations) == (2, 0)


async def test_the_end_of_the_answer_is_kept_unless_eos_is_ignored():
    request = {"model": MODEL, "prompt": "x", "max_tokens": 20}
    async with running_app(answer_tokens=5) as served:
        ended = (await served.client.post("/v1/completions", json=request)).json()
        forced = (await served.client.post("/v1/completions", json={**request, "ignore_eos": True})).json()
    assert ended["choices"][0]["finish_reason"] == "stop"
    assert len(ended["choices"][0]["text"]) == 4  # the fifth token is the end itself
    assert ended["usage"]["completion_tokens"] == 5
    assert forced["choices"][0]["finish_reason"] == "length"
    assert forced["usage"]["completion_tokens"] == 20


async def test_a_clients_own_stop_token_ends_the_answer():
    request = {"model": MODEL, "prompt": [7], "max_tokens": 20}
    async with running_app() as served:
        tokens = await generated_tokens(served, request)
        response = await served.client.post("/v1/completions", json={**request, "stop_token_ids": [tokens[3]]})
    assert response.json()["choices"][0]["finish_reason"] == "stop"
    assert response.json()["usage"]["completion_tokens"] == tokens.index(tokens[3]) + 1


async def generated_tokens(served: ServedApp, request: dict) -> list[int]:
    """Straight from the engine: the simulated runner gives the same tokens again."""
    stream = served.engine.submit("direct", request["prompt"], SamplingParams(max_tokens=request["max_tokens"]))
    return [token_id async for chunk in stream for token_id in chunk.token_ids]


async def test_max_tokens_is_cut_to_the_room_that_is_left():
    prompt = [1] * (CONTEXT - 4)
    async with running_app() as served:
        request = {"model": MODEL, "prompt": prompt, "max_tokens": 1000, "ignore_eos": True}
        body = (await served.client.post("/v1/completions", json=request)).json()
    assert body["usage"]["completion_tokens"] == 4
    assert body["choices"][0]["finish_reason"] == "length"


async def test_a_top_k_beyond_the_vocabulary_is_off():
    """It goes into a tensor of 64 bits, where 2**70 would make the step of everybody fail."""
    async with running_app() as served:
        await served.client.post("/v1/completions", json={"model": MODEL, "prompt": "x", "top_k": 2**70})
    assert served.gate.batch.rows[0].sampling.top_k == served.gate.vocab_size


async def test_max_completion_tokens_is_openais_newer_name():
    async with running_app() as served:
        body = (await served.client.post("/v1/chat/completions", json=chat(max_completion_tokens=2))).json()
    assert body["usage"]["completion_tokens"] == 2


async def test_content_parts_and_echoed_assistant_messages_are_understood():
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "be"}, {"type": "text", "text": " brief"}]},
        {"role": "assistant", "content": "ok", "tool_calls": None, "refusal": None, "annotations": [], "audio": None},
        {"role": "user", "content": "go", "name": "ann"},
    ]
    async with running_app() as served:
        response = await served.client.post("/tokenize", json={"messages": messages})
        text = (await served.client.post("/detokenize", json={"tokens": response.json()["tokens"]})).json()["prompt"]
    assert text == "system: be brief\nassistant: ok\nuser: go\n"
    assert response.json()["count"] == len(text)
    assert response.json()["max_model_len"] == CONTEXT


class RefusingCodec(ByteCodec):
    """A template that knows no system role."""

    def apply_chat_template(self, messages, options=DEFAULT_OPTIONS):
        template = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role here') }}{% endif %}hi"
        return ChatTemplate(template, "the template").render(messages, {}, options)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
async def test_what_a_template_refuses_is_the_clients_to_change(path):
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    body = {"model": MODEL, "messages": messages}
    async with running_app(codec=RefusingCodec()) as served:
        refused = await served.client.post(path, json=body)
        taken = await served.client.post(path, json={**body, "messages": messages[1:]})
    assert (refused.status_code, taken.status_code) == (400, 200)
    error = refused.json()["error"]
    assert "no system role here" in error["message"]
    assert error["param"] == "messages"


@pytest.mark.parametrize(
    "fields",
    [
        {"user": "ann", "metadata": {"team": "a"}, "store": False, "service_tier": "auto", "safety_identifier": "x"},
        {"n": 1, "logprobs": False, "tools": [], "tool_choice": "auto", "response_format": {"type": "text"}},
        {"presence_penalty": 0, "frequency_penalty": 0.0, "repetition_penalty": 1.0, "min_p": 0, "logit_bias": {}},
        {"stop": None, "seed": None, "top_p": 1, "top_k": -1, "temperature": 0},
    ],
)
async def test_fields_that_change_nothing_are_accepted(fields):
    async with running_app() as served:
        response = await served.client.post("/v1/chat/completions", json=chat(**fields))
    assert response.status_code == 200, response.text


async def test_models_say_that_answers_are_simulated():
    async with running_app() as served:
        listed = (await served.client.get("/v1/models")).json()
        one = await served.client.get(f"/v1/models/{MODEL}")
        other = await served.client.get("/v1/models/nobody/knows")
    assert listed["object"] == "list"
    assert [card["id"] for card in listed["data"]] == [MODEL, "alias/of-it"]
    assert listed["data"][0]["x_tidegate"] == {"runner": "sim", "simulation": True}
    assert listed["data"][0]["max_model_len"] == CONTEXT
    assert one.json() == listed["data"][0]
    assert other.status_code == 404


async def test_connections_are_closed_while_requests_wait_and_kept_otherwise():
    async with running_app(slots=1) as served:
        assert "connection" not in (await served.client.get("/v1/models")).headers
        with served.gate.closed():
            running = served.background("/v1/completions", {"model": MODEL, "prompt": "x", "max_tokens": 2})
            await served.eventually(lambda: served.load().running == 1)
            waiting = served.background("/v1/completions", {"model": MODEL, "prompt": "x", "max_tokens": 2})
            await served.eventually(lambda: served.load().waiting == 1)
            assert (await served.client.get("/v1/models")).headers["connection"] == "close"
        assert (await running).status_code == (await waiting).status_code == 200
        served.engine.drain()
        assert (await served.client.get("/v1/models")).headers["connection"] == "close"


async def test_health_is_what_load_generators_ask_first_and_says_when_to_go_elsewhere():
    async with running_app() as served:
        assert (await served.client.get("/health")).status_code == 200
        served.engine.drain()
        refusal = await served.client.get("/health")
        assert (refusal.status_code, refusal.json()["error"]["code"]) == (503, "draining")


async def test_a_stream_that_waits_sends_comments_so_that_proxies_do_not_cut_it():
    async with running_app(ping_seconds=0.01) as served:
        with served.gate.closed():
            request = {"model": MODEL, "prompt": "x", "max_tokens": 2, "stream": True}
            running = served.background("/v1/completions", request)
            await served.eventually(lambda: served.exchanges.body_parts.count(b": ping\n\n") >= 2)
        response = await running
    assert events_of_without_pings(response)[-1]["choices"][0]["finish_reason"] == "length"


async def test_a_stream_whose_tokens_say_nothing_sends_comments_too():
    """A call that is held until it is complete, or special tokens that are not shown."""

    class SilentGeneration:
        num_choices = 1
        ping_seconds = 0.0

        async def pieces(self):
            for _ in range(3):
                yield 0, Piece()
            yield 0, Piece((Content("x"),), FinishReason.STOP)

    renderer = CompletionRenderer(AnswerHead("id", 1, MODEL), StreamOptions(), lambda _: b"")
    sent = [event async for event in events(SilentGeneration(), renderer, StreamOptions())]
    assert sent[:3] == [b": ping\n\n"] * 3
    assert [event[:5] for event in sent[3:]] == [b"data:", b"data:"]


def events_of_without_pings(response: httpx.Response) -> list:
    text = response.text.replace(": ping\n\n", "")
    return events_of(httpx.Response(200, text=text))


@pytest.mark.parametrize("prompt", [{"prompt": [1] * 20}, {"messages": [{"role": "user", "content": "hi"}]}])
async def test_an_answer_without_max_tokens_goes_on_to_the_end_of_a_context_of_less_than_a_thousand(prompt):
    path = "/v1/completions" if "prompt" in prompt else "/v1/chat/completions"
    async with running_app() as served:
        usage = (await served.client.post(path, json={"model": MODEL, "ignore_eos": True, **prompt})).json()["usage"]
    assert usage["total_tokens"] == CONTEXT


class HeldCodec(ByteCodec):
    """Tokenizing takes until released."""

    def __init__(self) -> None:
        super().__init__()
        self.is_busy, self.release = threading.Event(), threading.Event()

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        self.is_busy.set()
        self.release.wait()
        return super().encode(text, add_special_tokens=add_special_tokens)


async def test_nobody_waits_for_anothers_long_prompt_to_be_tokenized():
    codec = HeldCodec()
    async with running_app(codec=codec) as served:
        held = served.background("/v1/completions", {"model": MODEL, "prompt": "x", "max_tokens": 2})
        await served.eventually(codec.is_busy.is_set)
        models = await served.client.get("/v1/models")
        other = await served.client.post("/v1/completions", json={"model": MODEL, "prompt": [1], "max_tokens": 2})
        codec.release.set()
        assert models.status_code == other.status_code == (await held).status_code == 200


class HeldTemplate(HeldCodec):
    """Rendering a conversation takes until released."""

    def apply_chat_template(self, messages, options=DEFAULT_OPTIONS):
        self.is_busy.set()
        self.release.wait()
        return super().apply_chat_template(messages, options)


async def test_nobody_waits_for_anothers_long_conversation_to_be_rendered():
    codec = HeldTemplate()
    async with running_app(codec=codec) as served:
        held = served.background("/v1/chat/completions", chat(max_tokens=2))
        await served.eventually(codec.is_busy.is_set)
        models = await served.client.get("/v1/models")
        other = await served.client.post("/v1/completions", json={"model": MODEL, "prompt": [1], "max_tokens": 2})
        codec.release.set()
        assert models.status_code == other.status_code == (await held).status_code == 200


async def test_a_text_that_cannot_fit_is_never_tokenized():
    codec = HeldCodec()
    async with running_app(codec=codec) as served:
        request = {"model": MODEL, "prompt": "x" * (CONTEXT + 1)}
        assert (await served.client.post("/v1/completions", json=request)).status_code == 400
    assert not codec.is_busy.is_set()


async def test_a_failed_step_ends_the_stream_with_an_error_event_and_done():
    request = {"model": MODEL, "prompt": [POISON]}
    async with running_app() as served:
        response = await served.client.post("/v1/completions", json={**request, "stream": True})
        whole = await served.client.post("/v1/completions", json=request)
        after = await served.client.post("/v1/chat/completions", json=chat())
    assert response.status_code == 200
    assert events_of(response)[-1]["error"]["type"] == "server_error"
    assert whole.status_code == 500
    assert whole.json()["error"]["code"] == "internal_error"
    assert after.status_code == 200


async def test_first_tokens_are_counted_once_an_answer_with_the_time_it_took():
    request = {"model": MODEL, "prompt": ["a", "b"], "max_tokens": 4}
    async with running_app(step_seconds=0.01) as served:
        started = time.monotonic()
        await served.client.post("/v1/completions", json=request)
        await served.client.post("/v1/completions", json={**request, "prompt": "x" * 1000})  # refused
        seconds = time.monotonic() - started
        text = (await served.client.get("/metrics")).text
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    labels = f'{{engine="0",model_name="{MODEL}"}}'
    assert lines[f"vllm:time_to_first_token_seconds_count{labels}"] == "2.0"
    assert 0.02 <= float(lines[f"vllm:time_to_first_token_seconds_sum{labels}"]) <= 2 * seconds
    assert 0.01 <= float(lines[f"vllm:inter_token_latency_seconds_sum{labels}"]) <= 2 * seconds


async def test_after_the_engine_has_failed_for_good_every_request_is_refused_at_once():
    request = {"model": MODEL, "prompt": "x", "max_tokens": 5}
    async with running_app() as served:
        served.gate.is_broken = True
        first = await served.client.post("/v1/completions", json=request)
        later = [await served.client.post("/v1/completions", json=request) for _ in range(3)]
        assert served.engine.is_idle, "nothing piles up"
    assert first.status_code == 500
    assert [response.status_code for response in later] == [503] * 3
    assert {response.json()["error"]["code"] for response in later} == {"engine_failed"}
    assert {response.headers["connection"] for response in later} == {"close"}


async def test_metrics_count_under_our_names_and_vllms():
    async with running_app() as served:
        await served.client.post("/v1/completions", json={"model": MODEL, "prompt": "four", "max_tokens": 5})
        text = (await served.client.get("/metrics")).text
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    ours, theirs = f'{{model_name="{MODEL}"}}', f'{{engine="0",model_name="{MODEL}"}}'
    assert lines[f"tidegate_prompt_tokens_total{ours}"] == lines[f"vllm:prompt_tokens_total{theirs}"] == "4.0"
    assert lines[f"tidegate_generation_tokens_total{ours}"] == lines[f"vllm:generation_tokens_total{theirs}"] == "5.0"
    assert lines[f"vllm:time_to_first_token_seconds_count{theirs}"] == "1.0"
    assert lines[f"tidegate_requests_completed_total{ours}"] == "1.0"
    assert lines[f"vllm:num_requests_waiting{theirs}"] == lines[f"vllm:kv_cache_usage_perc{theirs}"] == "0.0"
    assert f'vllm:cache_config_info{{block_size="16",engine="0",model_name="{MODEL}",num_gpu_blocks=' in text
