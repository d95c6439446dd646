"""The simulated runner: takes the time a model would, answers reproducibly, and says what it is."""

import pytest

from scripted_engine import VirtualClock
from tidegate_engine.counters import Counters
from tidegate_engine.request import SamplingParams
from tidegate_engine.runner import RowExtras, ScheduledRow, StepBatch
from tidegate_engine.scheduling.step_fit import StepTime
from tidegate_engine.sim import SimRunner, SimSettings


def row(request_id: str, token_ids: tuple[int, ...], start: int, *, num_outputs: int = 0, samples: bool = True):
    return ScheduledRow(request_id, token_ids, start, ((0, 1),), SamplingParams(9) if samples else None, num_outputs)


def sim(**settings: object) -> tuple[SimRunner, VirtualClock, Counters]:
    clock, counters = VirtualClock(), Counters()
    return SimRunner(SimSettings(num_blocks=10, **settings), counters=counters, sleep=clock.sleep), clock, counters


def test_a_step_takes_the_time_of_its_tokens_and_context():
    runner, clock, _ = sim(step_time=StepTime(0.1, 0.01, 0.001))
    runner.run(StepBatch((row("a", (5,), 20), row("b", (1, 2, 3), 10))))
    assert clock() == pytest.approx(0.1 + 4 * 0.01 + 30 * 0.001)


def test_tokens_do_not_depend_on_the_batch_and_are_none_in_the_middle_of_a_prompt():
    runner, _, _ = sim()
    a, b = row("a", (5,), 20, num_outputs=3), row("b", (1, 2, 3), 10, samples=False)
    together = runner.run(StepBatch((a, b)))
    assert together == (*runner.run(StepBatch((a,))), None)
    assert together[0].token_id in range(1, runner.vocab_size)


def test_no_token_but_the_one_after_the_answer_is_the_end():
    runner, _, _ = sim(answer_tokens=4, vocab_size=3, eos_token_id=2)
    tokens = [runner.run(StepBatch((row("a", (i,), i, num_outputs=i),)))[0].token_id for i in range(4)]
    assert [token == 2 for token in tokens] == [False, False, False, True]


def test_preemptions_are_counted_at_the_asked_pace_while_steps_run():
    runner, clock, counters = sim(step_time=StepTime(0.5), preemptions_per_minute=30)
    for _ in range(240):
        runner.run(StepBatch((row("a", (5,), 20),)))
    assert (clock(), counters.preemptions) == (pytest.approx(120), 60)


def test_it_says_that_it_is_a_simulation(caplog):
    runner, _, _ = sim()
    assert runner.is_simulation
    assert "this engine is a simulation" in caplog.text


class Mask:
    """A constraint with one mask for ever."""

    is_finished = False

    def __init__(self, *token_ids: int) -> None:
        self.allowed = token_ids

    def mask(self) -> bytes:
        return sum(1 << token_id for token_id in self.allowed).to_bytes(32, "little")

    def copy(self) -> "Mask":
        return Mask(*self.allowed)

    def advance(self, token_id: int) -> None:
        assert token_id in self.allowed


def test_a_held_answer_takes_allowed_tokens_and_ends_as_soon_as_it_may():
    runner, _, _ = sim(eos_token_id=0)

    def drawn(*allowed: int) -> set[int]:
        extras = RowExtras(constraint=Mask(*allowed))
        rows = [row("a", (i,), i)._replace(extras=extras) for i in range(60)]
        return {output.token_id for output in runner.run(StepBatch(tuple(rows)))}

    assert drawn(5, 77, 200) == {5, 77, 200}
    assert drawn(0, 5, 77) == {0}
