"""The client our users hold, against a real engine process with the simulated runner."""

from collections.abc import Iterator

import openai
import pytest

from serving import EngineUnderTest, engine_process

MODEL = "rehearsal"
NUM_ANSWER_TOKENS = 12


@pytest.fixture(scope="module")
def engine() -> Iterator[EngineUnderTest]:
    arguments = (
        "--runner",
        "sim",
        "--context",
        "512",
        "--output-tokens",
        str(NUM_ANSWER_TOKENS),
        "--served-name",
        MODEL,
    )
    with engine_process("/no/model/needed", *arguments) as engine:
        yield engine


@pytest.fixture
def client(engine) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{engine.url}/v1", api_key="none", max_retries=0) as client:
        yield client


MESSAGES = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]


def test_models_are_listed(client):
    (model,) = client.models.list().data
    assert model.id == MODEL
    assert model.x_tidegate == {"runner": "sim", "simulation": True}


def test_chat(client):
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES)
    assert answer.choices[0].finish_reason == "stop"
    assert len(answer.choices[0].message.content) == NUM_ANSWER_TOKENS - 1
    assert answer.usage.completion_tokens == NUM_ANSWER_TOKENS


def test_chat_streamed(client):
    whole = client.chat.completions.create(model=MODEL, messages=MESSAGES).choices[0].message.content
    with client.chat.completions.create(
        model=MODEL, messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    ) as stream:
        *chunks, last = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert last.choices == []
    assert last.usage.completion_tokens == NUM_ANSWER_TOKENS


def test_a_conversation_goes_on_with_the_clients_own_copy_of_the_answer(client):
    first = client.chat.completions.create(model=MODEL, messages=MESSAGES).choices[0].message
    messages = [*MESSAGES, first.model_dump(), {"role": "user", "content": "and then?"}]
    assert client.chat.completions.create(model=MODEL, messages=messages).choices[0].message.content


def test_completions_of_a_text_and_of_token_ids(client):
    text = client.completions.create(model=MODEL, prompt="abc", max_tokens=4)
    ids = client.completions.create(model=MODEL, prompt=list(b"abc"), max_tokens=4)
    assert text.choices[0].text == ids.choices[0].text
    assert ids.choices[0].finish_reason == "length"


def test_ignore_eos_runs_to_max_tokens(client):
    answer = client.completions.create(model=MODEL, prompt="abc", max_tokens=40, extra_body={"ignore_eos": True})
    assert answer.usage.completion_tokens == 40


def test_completions_streamed_for_several_prompts(client):
    with client.completions.create(model=MODEL, prompt=["a", "b"], max_tokens=4, stream=True) as stream:
        chunks = [chunk.choices[0] for chunk in stream]
    assert {chunk.index for chunk in chunks} == {0, 1}
    assert sum(len(chunk.text) for chunk in chunks) == 8


def test_several_choices_with_logprobs(client):
    answer = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, n=3, seed=1, logprobs=True, top_logprobs=2, max_tokens=4
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    for choice in answer.choices:
        spelt = b"".join(bytes(token.bytes) for token in choice.logprobs.content)
        assert spelt.decode() == choice.message.content
        assert [len(token.top_logprobs) for token in choice.logprobs.content] == [2] * 4
    assert answer.usage.completion_tokens == 12


def test_an_answer_of_a_given_form(client):
    answer = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, extra_body={"structured_outputs": {"choice": ["high", "low"]}}
    )
    assert answer.choices[0].message.content in {"high", "low"}


def test_a_forced_call(client):
    schema = {"type": "object", "properties": {"unit": {"enum": ["m", "ft"]}}, "required": ["unit"]}
    tool = {"type": "function", "function": {"name": "depth", "parameters": {**schema, "additionalProperties": False}}}
    answer = client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        tools=[tool],
        tool_choice={"type": "function", "function": {"name": "depth"}},
        max_tokens=300,
    )
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == "depth"
    assert call.function.arguments.lstrip().startswith("{")


def test_errors_are_the_clients_own_exceptions(client):
    with pytest.raises(openai.NotFoundError, match="rehearsal") as unknown:
        client.chat.completions.create(model="gpt-4", messages=MESSAGES)
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError, match="'n'") as too_many:
        client.chat.completions.create(model=MODEL, messages=MESSAGES, n=17)
    assert too_many.value.param == "n"
    with pytest.raises(openai.BadRequestError, match="guided_regex") as bad_grammar:
        client.chat.completions.create(model=MODEL, messages=MESSAGES, extra_body={"guided_regex": "("})
    assert bad_grammar.value.code == "invalid_grammar"
    with pytest.raises(openai.BadRequestError, match="512 tokens"):
        client.completions.create(model=MODEL, prompt=[1] * 512)
