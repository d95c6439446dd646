"""Gemma 3 270M from its GGUF file, through a real process and the openai client: the whole engine on a real model."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jsonschema_rs
import openai
import pytest

from real_model import CONTINUATION, PROMPT, gemma_gguf
from serving import EngineUnderTest, engine_process
from tidegate_checkpoint.shape import read_shape
from tidegate_core.memory import overhead_of
from tidegate_core.sizing import Target
from tidegate_engine.process.process_memory import private_bytes

MODEL = "gemma-3-270m"
CONTEXT = 512
KV_BYTES = 128 * 2**20
MAX_WAIT_SECONDS = 600  # nothing is refused on a machine that others keep busy
NUM_REQUESTS = 40
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "is_capital": {"type": "boolean"},
        "people": {"type": "integer", "minimum": 0, "maximum": 99_999_999},
    },
    "required": ["city", "is_capital", "people"],
    "additionalProperties": False,
}
IN_FORM = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA, "strict": True}}
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


@pytest.fixture(scope="module")
def engine(tmp_path_factory) -> Iterator[EngineUnderTest]:
    template = Path(tmp_path_factory.mktemp("template")) / "plain.jinja"
    template.write_text(TEMPLATE)
    arguments = (
        "--context",
        str(CONTEXT),
        "--kv-memory",
        str(KV_BYTES),
        "--served-name",
        MODEL,
        "--chat-template",
        str(template),
    )
    with engine_process(str(gemma_gguf()), *arguments, "--max-wait-seconds", str(MAX_WAIT_SECONDS)) as engine:
        print(f"\nready {engine.ready_seconds:.1f} s after process start")
        yield engine


@pytest.fixture
def client(engine) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{engine.url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client


def test_it_continues_as_transformers_does(client):
    answer = client.completions.create(model=MODEL, prompt=PROMPT, temperature=0, max_tokens=24)
    assert answer.choices[0].text == CONTINUATION
    assert answer.choices[0].finish_reason == "length"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (6, 24)


def test_a_stream_and_a_chat_through_a_plain_template_say_the_same(client):
    with client.completions.create(model=MODEL, prompt=PROMPT, temperature=0, max_tokens=12, stream=True) as stream:
        streamed = "".join(chunk.choices[0].text for chunk in stream)
    messages = [{"role": "user", "content": "<bos>" + PROMPT}]
    chat = client.chat.completions.create(model=MODEL, messages=messages, temperature=0, max_tokens=12)
    assert CONTINUATION.startswith(streamed)
    assert chat.choices[0].message.content == streamed


def test_answers_do_not_depend_on_the_company_they_are_in(client):
    alone = client.completions.create(model=MODEL, prompt=PROMPT, temperature=0.9, seed=11, max_tokens=10)
    prompts = ["Once upon a time", PROMPT, "1 2 3 4"]
    together = client.completions.create(model=MODEL, prompt=prompts, temperature=0.9, seed=11, max_tokens=10)
    assert together.choices[1].text == alone.choices[0].text


def test_a_stop_string_is_cut_off(client):
    answer = client.completions.create(model=MODEL, prompt=PROMPT, temperature=0, max_tokens=24, stop=[" France"])
    assert answer.choices[0].text == " the capital of the country of"
    assert answer.choices[0].finish_reason == "stop"


def test_a_prompt_that_was_answered_before_is_cached_and_usage_says_so(client):
    prompt = "All day long the old man sat by the river and told the children " * 4
    answers = [client.completions.create(model=MODEL, prompt=prompt, temperature=0, max_tokens=2) for _ in range(2)]
    cached = [answer.usage.prompt_tokens_details.cached_tokens for answer in answers]
    assert cached == [0, (answers[0].usage.prompt_tokens - 1) // 16 * 16]


def test_its_memory_is_what_it_says(engine):
    sizing = engine.load()["sizing"]
    assert sizing["kvBlocksTotal"] * sizing["blockSize"] >= sizing["context"]
    assert sizing["kvBytes"] <= KV_BYTES
    assert sizing["residentBytes"] >= sizing["loadedBytes"] > sizing["weightBytes"] > 0


def test_an_answer_held_to_a_schema_parses_and_is_valid(client):
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "<bos>Facts about Paris as JSON:\n"}],
        response_format=IN_FORM,
        temperature=0,
        max_tokens=150,
    )
    assert answer.choices[0].finish_reason == "stop"
    jsonschema_rs.validate(SCHEMA, json.loads(answer.choices[0].message.content))


def test_after_requests_of_all_kinds_its_memory_is_within_what_was_planned(engine, client):
    """Also with the table for grammars, which came with the test before or comes now."""
    kinds = [{}, {"logprobs": 5}, {"temperature": 0.8, "top_p": 0.9, "seed": 1}, {"response_format": IN_FORM}]

    def ask(number: int) -> str:
        prompt = f"City number {number}:" * (1 + number % 3)
        options = {"temperature": 0} | kinds[number % len(kinds)]
        form = {"response_format": options.pop("response_format")} if "response_format" in options else {}
        answer = client.completions.create(model=MODEL, prompt=prompt, max_tokens=2, extra_body=form, **options)
        return answer.choices[0].finish_reason

    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(ask, range(NUM_REQUESTS))) <= {"length", "stop"}
    shape = read_shape(gemma_gguf())
    overhead = overhead_of(shape, Target("cpu", 2**31))
    sizing = engine.load()["sizing"]
    peaks = overhead.activation + overhead.logits
    planned = overhead.runtime + sizing["weightBytes"] + sizing["kvBytes"] + peaks
    resident = private_bytes(Path(f"/proc/{engine.process.pid}/status").read_text())
    print(f"\n{resident / 2**20:.0f} MiB, planned {planned / 2**20:.0f}, {peaks / 2**20:.0f} of it for a step's peak")
    assert resident <= planned
