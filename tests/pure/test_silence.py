"""Replicas that do not report: who is named, with what answer, in words that stay while the situation does."""

import pytest

from pools import load
from tidegate_core.samples import Round, Sample
from tidegate_operator.decisions.silence import has_metrics, silence

HTTP_500, TIMED_OUT = "GET /load: HTTP 500", "GET /load: no answer within 2 s"


def scrape(time: float, **answers: str | None) -> Round:
    """What each ready replica answered; None is a report."""
    return Round(
        time,
        ready=frozenset(answers),
        samples={name: Sample.of(load()) for name, answer in answers.items() if answer is None},
        failures={name: answer for name, answer in answers.items() if answer is not None},
    )


@pytest.mark.parametrize(
    ("rounds", "expected"),
    [
        pytest.param((), None, id="never asked"),
        pytest.param((scrape(0),), None, id="nobody ready"),
        pytest.param((scrape(0, a=None),), True, id="all report"),
        pytest.param((scrape(0, a=None), scrape(5, a=HTTP_500)), True, id="one lost report is no news"),
        pytest.param((scrape(0, a=HTTP_500), scrape(5, a=HTTP_500)), False, id="silent"),
        pytest.param((scrape(0, a=None, b=None, c=None, d=None, e=HTTP_500),), True, id="one of five may be silent"),
    ],
)
def test_enough_report_when_any_recent_round_is_nearly_complete(
    rounds: tuple[Round, ...], expected: bool | None
) -> None:
    assert has_metrics(rounds) is expected


def test_the_only_replica_is_named_with_its_answer_and_where_to_look() -> None:
    assert silence((scrape(0, chat=HTTP_500),)) == (
        "chat: GET /load: HTTP 500 (1 of 1 ready replicas does not report); the pool keeps its size; "
        "see kubectl logs chat"
    )


def test_of_several_the_first_is_named_and_all_are_counted() -> None:
    said = silence((scrape(0, a=None, b=HTTP_500, c=TIMED_OUT),))
    assert said.startswith("b: GET /load: HTTP 500 (2 of 3 ready replicas do not report)")


def test_the_words_do_not_change_with_every_scrape_of_an_engine_that_fails_in_turns() -> None:
    rounds = [scrape(5 * number, a=HTTP_500 if number % 2 else TIMED_OUT) for number in range(8)]
    assert len({silence(tuple(rounds[start : start + 3])) for start in range(6)}) == 1


def test_the_words_do_not_change_with_every_scrape_of_replicas_that_report_in_turns() -> None:
    rounds = [scrape(5 * number, a=HTTP_500 if number % 2 else None, b=None if number % 2 else HTTP_500)
              for number in range(8)]  # fmt: skip
    said = {silence(tuple(rounds[start : start + 3])) for start in range(6)}
    assert said == {"more than a fifth of the ready replicas miss each round of GET /load; the pool keeps its size"}


def test_a_replica_that_left_is_not_named() -> None:
    assert silence((scrape(0, a=HTTP_500, b=HTTP_500), scrape(5, b=HTTP_500))).startswith("b: ")
