"""Log probabilities of answers and prompts: the model's own, the same whatever else is in a step."""

import pytest
import torch

from running import answer_chunks
from tidegate_core.launch import EngineLaunch
from tidegate_engine.compute.logprobs import prompt_logprobs, raw_logprobs
from tidegate_engine.compute.torch_runner import TorchRunner
from tidegate_engine.request import SamplingParams
from tiny_models import save_tiny_model

PROMPT = [3, 100, 42, 8, 15, 16, 23, 4, 77, 31, 5, 9]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    reference = save_tiny_model("llama", folder)
    launch = EngineLaunch(model=str(folder), kv_memory=2**21, context=256, threads=2)
    return TorchRunner.load(launch, folder), reference


def reference_logprobs(reference, token_ids) -> torch.Tensor:
    with torch.no_grad():
        return reference(torch.tensor([token_ids])).logits[0].log_softmax(-1)


def assert_as_expected(entry, expected: torch.Tensor, token_id: int, num_top: int) -> None:
    assert entry.token_id == token_id
    assert entry.logprob == pytest.approx(expected[token_id].item(), abs=1e-4)
    best = expected.topk(num_top) if num_top else None
    assert [token for token, _ in entry.top] == (best.indices.tolist() if best else [])
    assert [logprob for _, logprob in entry.top] == pytest.approx(best.values.tolist() if best else [], abs=1e-4)


@pytest.mark.parametrize("num_top", [0, 1, 20])
def test_each_sampled_token_has_its_log_probability_as_transformers_gives_it(models, num_top):
    runner, reference = models
    sampling = SamplingParams(12, temperature=0.8, seed=5, num_logprobs=num_top)
    (chunk,) = answer_chunks(runner, [PROMPT], [sampling])
    expected = reference_logprobs(reference, PROMPT + list(chunk.token_ids))
    assert len(chunk.logprobs) == 12
    for place, (token_id, entry) in enumerate(zip(chunk.token_ids, chunk.logprobs, strict=True)):
        assert_as_expected(entry, expected[len(PROMPT) + place - 1], token_id, num_top)


def test_they_are_the_models_own_whatever_the_request_changes_about_the_draw(models):
    runner, reference = models
    bent = SamplingParams(
        6,
        temperature=0.3,
        top_k=2,
        repetition_penalty=3.0,
        presence_penalty=1.0,
        logit_bias=((7, 9.0),),
        num_logprobs=3,
    )
    (chunk,) = answer_chunks(runner, [PROMPT], [bent])
    expected = reference_logprobs(reference, PROMPT + list(chunk.token_ids))
    for place, (token_id, entry) in enumerate(zip(chunk.token_ids, chunk.logprobs, strict=True)):
        assert_as_expected(entry, expected[len(PROMPT) + place - 1], token_id, 3)


def test_asking_for_them_changes_no_token_and_others_get_none(models):
    runner, _ = models
    plain = [
        SamplingParams(8, seed=seed, temperature=temperature) for seed, temperature in ((1, 1.0), (2, 0.0), (3, 1.5))
    ]
    asked = [plain[0], SamplingParams(8, seed=2, temperature=0.0, num_logprobs=2), plain[2]]
    without, some = (answer_chunks(runner, [PROMPT] * 3, params) for params in (plain, asked))
    assert [chunk.token_ids for chunk in some] == [chunk.token_ids for chunk in without]
    assert [len(chunk.logprobs) for chunk in some] == [0, 8, 0]


@pytest.mark.parametrize("max_step_tokens", [512, 48])
def test_every_prompt_token_but_the_first_has_one_also_in_chunks_beside_others(models, max_step_tokens):
    runner, reference = models
    long_prompt = [1 + (7 * place) % 200 for place in range(120)]
    samplings = [SamplingParams(3, temperature=0.0, num_prompt_logprobs=2), SamplingParams(3, temperature=0.0)] * 2
    chunks = answer_chunks(
        runner, [long_prompt, PROMPT, PROMPT, [5]], samplings, max_step_tokens=max_step_tokens, has_prefix_cache=True
    )
    assert [len(chunk.prompt_logprobs) for chunk in chunks] == [120, 0, len(PROMPT), 0]
    for prompt, chunk in ((long_prompt, chunks[0]), (PROMPT, chunks[2])):
        expected = reference_logprobs(reference, prompt)
        assert chunk.prompt_logprobs[0] is None
        for place, entry in enumerate(chunk.prompt_logprobs[1:], 1):
            assert_as_expected(entry, expected[place - 1], prompt[place], 2)


def test_a_prompt_of_one_token_has_nothing_that_predicts_it(models):
    (chunk,) = answer_chunks(models[0], [[5]], [SamplingParams(2, num_prompt_logprobs=1)])
    assert chunk.prompt_logprobs == (None,)


def test_a_second_request_with_the_same_prompt_has_them_all_although_its_keys_are_cached(models):
    runner, _ = models
    prompt = [1 + (5 * place) % 200 for place in range(70)]
    asked = SamplingParams(2, temperature=0.0, num_prompt_logprobs=1)
    chunks = answer_chunks(
        runner, [prompt] * 3, [SamplingParams(2, temperature=0.0), asked, asked], slots=1, has_prefix_cache=True
    )
    assert len(chunks[1].prompt_logprobs) == 70
    assert chunks[1].prompt_logprobs == chunks[2].prompt_logprobs


def test_no_more_rows_of_logits_exist_at_once_than_are_planned_however_long_the_prompt():
    num_rows = []

    def logits_of(hidden: torch.Tensor) -> torch.Tensor:
        num_rows.append(len(hidden))
        return hidden

    hidden = torch.randn(1000, 30, generator=torch.Generator().manual_seed(0))
    targets = [(place, place % 30, 1) for place in range(1000)]
    found = list(prompt_logprobs(hidden, targets, logits_of=logits_of, num_rows=64))
    assert (len(found), max(num_rows), sum(num_rows)) == (1000, 64, 1000)


def test_rows_that_ask_for_more_and_fewer_get_what_they_asked_for():
    logits = torch.tensor([[0.0, 1.0, 2.0], [2.0, 1.0, 0.0]])
    first, second = raw_logprobs(logits, [0, 2]).of([0, 0])
    assert first.top == ()
    assert [token_id for token_id, _ in second.top] == [0, 1]
    assert second.logprob == pytest.approx(logits.log_softmax(-1)[1, 0].item())
