"""Whole steps over a scripted runner: how requests end, and that one request's fault or departure is its own."""

import pytest

from scripted_engine import EOS, ScriptedRunner, collect, engine_of, request_of, run_until_idle
from tidegate_engine.errors import EngineFailed, GrammarFailed, NoToken
from tidegate_engine.request import FinishReason
from tidegate_engine.runner import ScheduledRow
from tidegate_engine.scheduling.step_fit import StepTime


def test_max_tokens_ends_a_request_by_length():
    engine = engine_of(ScriptedRunner(100))
    engine.queue.add(request_of("a", 20, 5))
    tokens, reason = run_until_idle(engine)["a"]
    assert (len(tokens), reason) == (5, FinishReason.LENGTH)
    assert (engine.counters.prompt_tokens, engine.counters.generation_tokens, engine.counters.completions) == (20, 5, 1)


def test_the_end_of_sequence_token_stops_and_is_delivered():
    engine = engine_of(ScriptedRunner(100, script={"a": (11, 12, EOS, 13)}))
    engine.queue.add(request_of("a", 20, 10))
    assert run_until_idle(engine)["a"] == ([11, 12, EOS], FinishReason.STOP)


def test_a_stop_token_stops_only_the_request_that_names_it():
    engine = engine_of(ScriptedRunner(100, script={"a": (11, 12, 13), "b": (11, 12, 13)}))
    engine.queue.add(request_of("a", 20, 3, stop_token_ids=frozenset({EOS, 12})))
    engine.queue.add(request_of("b", 20, 3))
    answers = run_until_idle(engine)
    assert answers == {"a": ([11, 12], FinishReason.STOP), "b": ([11, 12, 13], FinishReason.LENGTH)}


def test_without_the_end_token_among_its_stop_tokens_a_request_goes_on():
    engine = engine_of(ScriptedRunner(100, script={"a": (EOS, EOS, 9, 8)}))
    engine.queue.add(request_of("a", 20, 4, stop_token_ids=frozenset({9})))
    assert run_until_idle(engine)["a"] == ([EOS, EOS, 9], FinishReason.STOP)


def test_a_stop_token_at_the_last_place_is_a_stop():
    engine = engine_of(ScriptedRunner(100, script={"a": (11, EOS)}))
    engine.queue.add(request_of("a", 20, 2))
    assert run_until_idle(engine)["a"] == ([11, EOS], FinishReason.STOP)


def test_a_request_answers_the_same_alone_and_in_a_crowd():
    sizes = {f"r{i}": (10 + 37 * i, 5 + 3 * i) for i in range(12)}
    alone = {}
    for request_id, (num_prompt, max_tokens) in sizes.items():
        engine = engine_of(ScriptedRunner(1000))
        engine.queue.add(request_of(request_id, num_prompt, max_tokens))
        alone |= run_until_idle(engine)
    crowd = engine_of(ScriptedRunner(120), slots=5, max_step_tokens=64)
    for request_id, (num_prompt, max_tokens) in sizes.items():
        crowd.queue.add(request_of(request_id, num_prompt, max_tokens))
    assert run_until_idle(crowd) == alone


def poisoned(*names: str):
    def fault(rows: tuple[ScheduledRow, ...]) -> Exception | None:
        guilty = [row.request_id for row in rows if row.request_id in names]
        return RuntimeError(f"cannot compute {guilty}") if guilty else None

    return fault


def test_only_the_guilty_request_of_a_failing_step_fails():
    runner = ScriptedRunner(1000, fault=poisoned("r3"))
    engine = engine_of(runner)
    for i in range(8):
        engine.queue.add(request_of(f"r{i}", 10, 4))
    answers = run_until_idle(engine)
    assert answers.pop("r3") == ([], FinishReason.ERROR)
    assert {(len(tokens), reason) for tokens, reason in answers.values()} == {(4, FinishReason.LENGTH)}
    assert (engine.counters.errors, engine.counters.completions) == (1, 7)
    assert len(runner.batches) <= 1 + 2 * 3 + 3, "halving finds it, without trying every row"


def test_a_row_that_the_runner_says_is_guilty_fails_alone_and_nothing_is_computed_again():
    runner = ScriptedRunner(1000, failed={"r3": NoToken("its logits are not numbers")})
    engine = engine_of(runner)
    for i in range(8):
        engine.queue.add(request_of(f"r{i}", 10, 4))
    answers = run_until_idle(engine)
    assert answers.pop("r3") == ([], FinishReason.ERROR)
    assert {(len(tokens), reason) for tokens, reason in answers.values()} == {(4, FinishReason.LENGTH)}
    assert len(runner.batches) == 4


def test_a_runner_that_has_no_token_for_anybody_fails_the_engine():
    names = ["a", "b", "probe"]
    engine = engine_of(ScriptedRunner(100, failed={name: NoToken("its logits are not numbers") for name in names}))
    for name in names[:2]:
        engine.queue.add(request_of(name, 20, 4))
    with pytest.raises(EngineFailed, match="probe"):
        engine.step()


class Letters:
    """A constraint of tokens in a given order, complete after the last; fails where it is told to."""

    def __init__(self, *token_ids: int, fails_at: int | None = None) -> None:
        self.taken: list[int] = []
        self.failure: str | None = None
        self._token_ids = token_ids
        self._fails_at = fails_at

    @property
    def is_finished(self) -> bool:
        return len(self.taken) == len(self._token_ids)

    def mask(self) -> bytes:
        return (1 << self._token_ids[len(self.taken)]).to_bytes(16, "little")

    def copy(self) -> "Letters":
        return Letters(*self._token_ids)

    def advance(self, token_id: int) -> None:
        if len(self.taken) == self._fails_at:
            raise GrammarFailed("too costly")
        self.taken.append(token_id)


def test_a_complete_grammar_stops_its_request_and_its_last_token_is_text():
    engine = engine_of(ScriptedRunner(100, script={"a": (5, 6, 7, 8)}))
    constraint = Letters(5, 6, 7)
    engine.queue.add(request_of("a", 20, 9, constraint=constraint))
    chunks = [output.chunk for _ in range(3) for output in engine.step()]
    assert [(chunk.token_ids, chunk.finish_reason, chunk.is_all_text) for chunk in chunks] == [
        ((5,), None, False),
        ((6,), None, False),
        ((7,), FinishReason.STOP, True),
    ]
    assert constraint.taken == [5, 6, 7]
    assert engine.counters.completions == 1


def test_a_grammar_does_not_see_the_token_that_ends_the_answer():
    engine = engine_of(ScriptedRunner(100, script={"a": (5, EOS)}))
    constraint = Letters(5, 6)
    engine.queue.add(request_of("a", 20, 9, constraint=constraint))
    assert run_until_idle(engine)["a"] == ([5, EOS], FinishReason.STOP)
    assert constraint.taken == [5]


def test_a_grammar_that_fails_in_a_step_fails_its_request_alone():
    engine = engine_of(ScriptedRunner(100, script={"a": (5, 6, 7), "b": (5, 6, 7)}))
    engine.queue.add(request_of("a", 20, 3, constraint=Letters(5, 6, 7, 8, fails_at=1)))
    engine.queue.add(request_of("b", 20, 3))
    answers = run_until_idle(engine)
    assert answers == {"a": ([5], FinishReason.ERROR), "b": ([5, 6, 7], FinishReason.LENGTH)}


def test_two_guilty_requests_of_a_large_batch_are_both_found():
    engine = engine_of(ScriptedRunner(10_000, fault=poisoned("r3", "r200")), slots=256, max_step_tokens=8192)
    for i in range(256):
        engine.queue.add(request_of(f"r{i}", 8, 3))
    failed = [name for name, (_, reason) in run_until_idle(engine).items() if reason is FinishReason.ERROR]
    assert sorted(failed) == ["r200", "r3"]


def test_a_fault_that_does_not_come_back_fails_nobody():
    faults = [RuntimeError("once")]
    engine = engine_of(ScriptedRunner(100, fault=lambda _: faults.pop() if faults else None))
    for name in "ab":
        engine.queue.add(request_of(name, 20, 4))
    assert {reason for _, reason in run_until_idle(engine).values()} == {FinishReason.LENGTH}


def test_a_poisoned_request_alone_does_not_condemn_the_engine():
    engine = engine_of(ScriptedRunner(100, fault=poisoned("a")))
    for _ in range(5):
        engine.queue.add(request_of("a", 20, 4))
        assert run_until_idle(engine)["a"] == ([], FinishReason.ERROR)
    engine.queue.add(request_of("b", 20, 4))
    assert run_until_idle(engine)["b"][1] is FinishReason.LENGTH


def test_a_runner_that_computes_nothing_any_more_fails_the_engine():
    engine = engine_of(ScriptedRunner(100, fault=lambda _: RuntimeError("device lost")))
    engine.queue.add(request_of("a", 20, 4))
    with pytest.raises(EngineFailed, match="probe"):
        engine.step()


@pytest.mark.parametrize("num_tokens", [0, 2])
def test_a_runner_that_answers_for_too_few_or_many_rows_fails_the_request(num_tokens):
    class Miscounting(ScriptedRunner):
        def run(self, batch):
            tokens = super().run(batch)
            return tokens if batch.rows[0].request_id == "probe" else (1,) * num_tokens

    engine = engine_of(Miscounting(100))
    engine.queue.add(request_of("a", 20, 4))
    assert run_until_idle(engine)["a"] == ([], FinishReason.ERROR)


@pytest.mark.parametrize("steps_before", [0, 1, 4])
def test_a_cancelled_request_frees_its_blocks_within_two_steps(steps_before):
    engine = engine_of(ScriptedRunner(200), max_step_tokens=128)
    engine.queue.add(request_of("gone", 300, 50))
    engine.queue.add(request_of("stays", 20, 9))
    answers: dict = {}
    for _ in range(steps_before):
        collect(answers, engine.step())
    engine.end_soon("gone", FinishReason.ABORT)
    for _ in range(2):
        collect(answers, engine.step())
    assert [request.request_id for request in engine.scheduler.running] == ["stays"]
    engine.pool.check(engine.scheduler.running)
    assert answers["gone"][1] is FinishReason.ABORT
    run_until_idle(engine)
    assert (engine.counters.cancellations, engine.counters.completions, engine.pool.num_used) == (1, 1, 0)


def test_cancelling_what_has_ended_or_never_was_does_nothing():
    engine = engine_of(ScriptedRunner(100))
    engine.queue.add(request_of("a", 20, 2))
    run_until_idle(engine)
    engine.end_soon("a", FinishReason.ABORT)
    engine.end_soon("unknown", FinishReason.ABORT)
    assert engine.step() == ()
    assert not engine.has_work


def test_long_prompts_do_not_push_the_time_between_tokens_past_the_objective():
    runner = ScriptedRunner(10_000, step_time=StepTime(0.03, 2e-3, 1e-7))
    engine = engine_of(runner, itl_seconds=0.1)
    for i in range(12):  # steps are measured first
        engine.queue.add(request_of(f"warm-{i}", 50 + 10 * i, 2))
        run_until_idle(engine)
    engine.queue.add(request_of("chat", 20, 200))
    engine.step()
    for i in range(6):
        engine.queue.add(request_of(f"prompt-{i}", 1500, 5))
    gaps, last = [], runner.clock()
    while engine.has_work:
        if any(output.request_id == "chat" for output in engine.step()):
            gaps.append(runner.clock() - last)
            last = runner.clock()
    assert len(gaps) == 199
    assert max(gaps) <= 0.11
    assert max(gaps) > 0.09, "and prompts get what the objective leaves"


def test_no_step_of_a_huge_prompt_is_so_long_that_the_engine_looks_stuck():
    runner = ScriptedRunner(10_000, step_time=StepTime(0.03, 2e-3, 1e-7))
    engine = engine_of(runner)
    engine.queue.add(request_of("huge", 100_000, 2))
    lengths = []
    while engine.has_work:
        started = runner.clock()
        engine.step()
        lengths.append(runner.clock() - started)
    assert max(lengths) < 1, "a livez that follows steps stays young"
    assert sum(lengths) > 180, "although the prompt takes minutes"
