"""Gemma 3 270M from its GGUF file, through a real process and the openai client: the whole engine on a real model."""

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from real_model import CONTINUATION, PROMPT, gemma_gguf
from serving import EngineUnderTest, engine_process

MODEL = "gemma-3-270m"
READY_SECONDS = 60.0  # generous: the target of 10 s is for an idle machine, six times that for a busy one
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


@pytest.fixture(scope="module")
def engine(tmp_path_factory) -> Iterator[EngineUnderTest]:
    template = Path(tmp_path_factory.mktemp("template")) / "plain.jinja"
    template.write_text(TEMPLATE)
    arguments = ("--context", "512", "--kv-memory", "128Mi", "--served-name", MODEL, "--chat-template", str(template))
    with engine_process(str(gemma_gguf()), *arguments) as engine:
        yield engine


@pytest.fixture
def client(engine) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{engine.url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client


def test_it_is_ready_soon_after_its_process_starts(engine):
    print(f"ready {engine.ready_seconds:.1f} s after process start")
    assert engine.ready_seconds < READY_SECONDS


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


def test_its_memory_is_what_it_says(engine):
    sizing = engine.load()["sizing"]
    assert sizing["kvBlocksTotal"] * sizing["blockSize"] >= sizing["context"]
    assert sizing["kvBytes"] <= 128 * 2**20
    assert sizing["residentBytes"] > sizing["weightBytes"] > 0
