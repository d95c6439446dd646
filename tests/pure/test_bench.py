"""What `tidegate bench` sends and what it makes of answers, without a server."""

import argparse
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate_cli.bench.command import add_arguments, workload_of
from tidegate_cli.bench.endpoint import Api, Endpoint, parse_event
from tidegate_cli.bench.errors import BadBench
from tidegate_cli.bench.outcome import Ending, Outcome
from tidegate_cli.bench.prompts import Lengths, prompt_text
from tidegate_cli.bench.summary import Objectives, summarise, to_json, to_table
from tidegate_cli.bench.trace import TraceRequest
from tidegate_cli.bench.workload import PlannedRequest, poisson, replay

TRACE = (TraceRequest(5.0, 100, 20), TraceRequest(6.0, 9000, 20), TraceRequest(9.0, 50, 5, (1, 2)))


def parsed(*options: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(["--url", "http://x", "--model", "m", *options])


def answered(sent: float, *events: float, num_output_tokens: int | None = None) -> Outcome:
    count = len(events) if num_output_tokens is None else num_output_tokens
    return Outcome(Ending.COMPLETED, sent, events[-1], events, num_prompt_tokens=10, num_output_tokens=count)


def test_poisson_arrivals_have_the_asked_rate_and_the_same_seed_gives_the_same_moments():
    workload = poisson(4000, 20.0, 10, 5, seed=3)
    assert workload.is_open_loop
    assert workload.requests[-1].arrival_seconds == pytest.approx(200, rel=0.1)
    assert workload == poisson(4000, 20.0, 10, 5, seed=3)
    assert workload != poisson(4000, 20.0, 10, 5, seed=4)


def test_a_trace_is_replayed_at_its_own_pace_and_what_is_too_long_is_left_out_and_said():
    workload = replay(TRACE, name="t.csv", speedup=2.0, max_context=4096)
    assert [request.arrival_seconds for request in workload.requests] == [0.0, 2.0]
    assert [request.num_prompt_tokens for request in workload.requests] == [100, 50]
    assert "1 longer than 4096 tokens left out" in workload.description


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ((), "--concurrency C or --rate R"),
        (("--concurrency", "2", "--rate", "1"), "--concurrency C or --rate R"),
        (("--concurrency", "2"), "--requests, --prompt-tokens, --output-tokens"),
        (("--trace", "x.csv", "--rate", "1"), "leave out --rate"),
    ],
)
def test_options_that_do_not_go_together_are_named(options: tuple[str, ...], what: str):
    with pytest.raises(BadBench, match=what):
        workload_of(parsed(*options))


def test_prompt_lengths_are_learned_from_what_the_server_counts():
    lengths = Lengths.measured((8, 8 * 2 + 5), (72, 72 * 2 + 5))
    assert lengths.num_words(205) == 100
    text = prompt_text(PlannedRequest(0, 205, 1), lengths, seed=0)
    assert len(text.split()) == 100


def test_a_server_that_does_not_count_gets_a_word_a_token():
    assert Lengths.measured((8, 0), (72, 0)) == Lengths()


def test_prompts_share_what_their_prefix_ids_name_and_nothing_else():
    lengths = Lengths()
    first = prompt_text(PlannedRequest(0, 1500, 1, prefix_ids=(7, 8)), lengths, seed=0).split()
    second = prompt_text(PlannedRequest(1, 1500, 1, prefix_ids=(7, 9)), lengths, seed=0).split()
    third = prompt_text(PlannedRequest(2, 1500, 1), lengths, seed=0).split()
    assert first[:512] == second[:512]
    assert first[512:520] != second[512:520]
    assert first[:8] != third[:8]
    assert len(first) == len(second) == len(third) == 1500


def test_a_chat_is_asked_with_messages_and_a_completion_with_a_prompt_and_the_key_is_not_printed():
    chat = Endpoint("http://x/v1/", "m", Api.CHAT, api_key="secret")
    assert chat.path == "http://x/v1/chat/completions"
    assert chat.body("hi", 3)["messages"] == [{"role": "user", "content": "hi"}]
    assert Endpoint("http://x", "m", ignores_eos=False).body("hi", 3).keys().isdisjoint({"ignore_eos", "messages"})
    assert "secret" not in repr(chat)


def test_a_usage_chunk_without_choices_is_understood():
    usage = {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 8}}
    chunk = parse_event(json.dumps({"choices": [], "usage": usage}).encode())
    assert (chunk.num_prompt_tokens, chunk.num_output_tokens, chunk.num_cached_tokens) == (9, 4, 8)
    assert not chunk.has_text


def test_figures_of_a_run_are_what_its_clients_saw():
    outcomes = [
        answered(0.0, 0.5, 0.6, 0.7),
        answered(1.0, 3.5, 3.6, 4.0),
        Outcome(Ending.REJECTED, 2.0, 2.01, status=503, fault="503: full"),
        Outcome(Ending.FAILED, 2.0, 5.0, fault="broken"),
    ]
    summary = summarise(outcomes, Objectives(ttft_milliseconds=1000, itl_milliseconds=150))
    document = json.loads(to_json(summary))
    assert (document["requests"], document["failed"], document["rejected"]) == (4, 1, 1)
    assert document["outputTokensPerSecond"] == pytest.approx(6 / 5)
    assert document["goodput"] == pytest.approx(1 / 5)  # the second one waited too long for its first token
    assert document["ttftMilliseconds"]["p50"] == pytest.approx(1500)
    assert document["itlMilliseconds"]["p50"] == pytest.approx(100)
    assert document["maxGapMilliseconds"] == pytest.approx(400)
    assert document["faults"] == [{"fault": "503: full", "count": 1}, {"fault": "broken", "count": 1}]
    assert "2 completed, 1 rejected, 1 failed" in to_table(summary, Objectives())


def test_several_tokens_in_one_piece_of_text_count_for_the_mean_time_between_tokens():
    assert answered(0.0, 1.0, 2.0, num_output_tokens=5).tpot_seconds == pytest.approx(0.25)


def test_a_run_without_a_single_answer_has_no_latencies_and_no_division_by_zero():
    document = json.loads(to_json(summarise([Outcome(Ending.FAILED, 0.0, 0.0, fault="refused")], Objectives())))
    assert document["ttftMilliseconds"] == {"p50": None, "p95": None, "p99": None}
    assert document["maxGapMilliseconds"] is None
    assert document["outputTokensPerSecond"] == 0


@given(st.lists(st.floats(0.001, 10), min_size=1, max_size=50))
def test_quantiles_are_ordered_and_within_what_was_seen(seconds: list[float]):
    summary = summarise([answered(0.0, second) for second in seconds], Objectives())
    ttft = [summary.ttft.p50, summary.ttft.p95, summary.ttft.p99]
    assert ttft == sorted(ttft)
    assert min(seconds) * 1000 * (1 - 1e-9) <= ttft[0]
    assert ttft[-1] <= max(seconds) * 1000 * (1 + 1e-9)
