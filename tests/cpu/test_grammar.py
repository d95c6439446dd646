"""Answers held to a schema, expression, choice or grammar: they match it, and a bad one is refused by itself."""

import json
import re
import subprocess
import sys
import threading
import time

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from running import answer_chunks
from tidegate_core.launch import EngineLaunch
from tidegate_engine.compute.torch_runner import TorchRunner
from tidegate_engine.counters import Counters
from tidegate_engine.engine import Engine
from tidegate_engine.errors import BadGrammar, GrammarFailed
from tidegate_engine.grammar.compiler import GrammarCompiler
from tidegate_engine.grammar.spec import ANY_JSON_OBJECT, MAX_SPEC_BYTES, GrammarKind, GrammarSpec
from tidegate_engine.history import TokenHistory
from tidegate_engine.request import FinishReason, SamplingParams, ServiceClass, Terms, new_request
from tidegate_engine.runner import RowExtras, ScheduledRow, StepBatch
from tidegate_engine.scheduling.budget import BudgetLimits
from tidegate_engine.text.vocabulary import TokenVocabulary
from tiny_models import save_tiny_model

EOS = 0
PIECES = ['{"', '":', '": "', '", "', "true", "false", "null", "}}", "]}", '"}', ": ", ", ", "12", "ab"]
TOKENS = [b"</s>", *(bytes([byte]) for byte in range(32, 127)), b"\n", *(bytes([byte]) for byte in "é".encode())]
TOKENS += [piece.encode() for piece in PIECES]
PROMPT = [40, 41, 42]
ENDS = frozenset({EOS})

SCHEMAS = [
    {"type": "object", "properties": {"a": {"type": "integer", "minimum": -9, "maximum": 99}}, "required": ["a"]},
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 8},
            "kind": {"enum": ["x", "yy", 3, None]},
            "flags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 4},
        },
        "required": ["name", "kind", "flags"],
        "additionalProperties": False,
    },
    {"type": "array", "items": {"type": "number", "minimum": 0, "maximum": 1}, "minItems": 1, "maxItems": 3},
    {"anyOf": [{"const": {"b": [1, 2]}}, {"type": "string", "pattern": "^[a-c]{2,5}$"}]},
    {
        "$defs": {"leaf": {"type": "object", "properties": {"v": {"type": "null"}}, "additionalProperties": False}},
        "type": "object",
        "properties": {"left": {"$ref": "#/$defs/leaf"}, "right": {"$ref": "#/$defs/leaf"}},
        "required": ["left"],
        "additionalProperties": False,
    },
    {"type": "string", "format": "date"},
]


def vocabulary() -> TokenVocabulary:
    return TokenVocabulary(TOKENS, ENDS, ENDS, lambda text: [TOKENS.index(bytes([byte])) for byte in text.encode()])


@pytest.fixture(scope="module")
def compiler():
    compiler = GrammarCompiler(vocabulary)
    yield compiler
    compiler.close()


@pytest.fixture(scope="module")
def runner(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    save_tiny_model("llama", folder)
    return TorchRunner.load(EngineLaunch(model=str(folder), kv_memory=2**21, context=512, threads=2), folder)


def bytes_as_tokens(text: str) -> list[int]:
    return [1 + byte for byte in text.encode()]


def schema_spec(schema) -> GrammarSpec:
    return GrammarSpec(GrammarKind.JSON_SCHEMA, json.dumps(schema))


def text_of(token_ids) -> str:
    return b"".join(TOKENS[token_id] for token_id in token_ids if token_id != EOS).decode()


def drawn(seed: int, max_tokens: int = 300, **options) -> SamplingParams:
    return SamplingParams(max_tokens, seed=seed, temperature=1.5, stop_token_ids=ENDS, **options)


def constrained(runner, compiler, specs, samplings):
    return answer_chunks(
        runner, [PROMPT] * len(specs), samplings, constraints=[compiler.compile(spec) for spec in specs]
    )


def test_whatever_a_model_of_noise_says_under_a_schema_parses_and_is_valid(runner, compiler):
    schemas = SCHEMAS * 3
    specs = [schema_spec(schema) for schema in schemas]
    chunks = constrained(runner, compiler, specs, [drawn(seed) for seed in range(len(specs))])
    for schema, chunk in zip(schemas, chunks, strict=True):
        assert chunk.finish_reason is FinishReason.STOP
        jsonschema_rs.validate(schema, json.loads(text_of(chunk.token_ids)))
    assert len({chunk.token_ids for chunk in chunks}) > len(SCHEMAS)


@pytest.mark.parametrize(
    "pattern", [r"[a-f]{3,9}", r"(yes|no), (\d{1,3})", r"-?\d+\.\d{2}", r"/[a-z]+/\"x\"", r"é{1,3}", r"[^a-z]{4}\nend"]
)
def test_answers_match_their_regular_expression_from_end_to_end(runner, compiler, pattern):
    spec = GrammarSpec(GrammarKind.REGEX, pattern)
    for chunk in constrained(runner, compiler, [spec] * 4, [drawn(seed) for seed in range(4)]):
        assert chunk.finish_reason is FinishReason.STOP
        assert re.fullmatch(pattern, text_of(chunk.token_ids), re.ASCII)


CHOICES = ['a"b\\', "é\n(x)", "x/y|z", "[a-c]+", "  two  spaces", "a"]


def test_an_answer_is_one_of_its_choices_to_the_letter(runner, compiler):
    spec = GrammarSpec(GrammarKind.CHOICE, json.dumps(CHOICES))
    chunks = constrained(runner, compiler, [spec] * 12, [drawn(seed) for seed in range(12)])
    texts = {text_of(chunk.token_ids) for chunk in chunks}
    assert texts <= set(CHOICES)
    assert len(texts) > 2


@settings(max_examples=20, deadline=None)
@given(st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=12), min_size=1, max_size=4))
def test_every_text_can_be_a_choice(texts):
    tokens = [b"", *(bytes([byte]) for byte in range(256))]
    compiler = GrammarCompiler(lambda: TokenVocabulary(tokens, ENDS, ENDS, bytes_as_tokens))
    matcher = compiler.compile(GrammarSpec(GrammarKind.CHOICE, json.dumps(texts)))
    for byte in texts[-1].encode():
        matcher.advance(1 + byte)
    assert matcher.mask()[0] & 1, "the end may come"
    compiler.close()


@pytest.mark.parametrize(
    "grammar", ['start: "a" /[0-9]{2}/ ("b" | "c")', 'root ::= "a" [0-9] [0-9] tail\ntail ::= "b" | "c"']
)
def test_grammars_are_written_in_lark_or_gbnf(runner, compiler, grammar):
    (chunk,) = constrained(runner, compiler, [GrammarSpec(GrammarKind.GRAMMAR, grammar)], [drawn(1)])
    assert re.fullmatch("a[0-9]{2}[bc]", text_of(chunk.token_ids))


def test_any_json_object_begins_as_one_and_ends_where_it_is_complete(runner, compiler):
    biased = drawn(3, max_tokens=60, logit_bias=((TOKENS.index(b"}"), 50.0),))
    (chunk,) = constrained(runner, compiler, [ANY_JSON_OBJECT], [biased])
    assert isinstance(json.loads(text_of(chunk.token_ids)), dict)
    assert (chunk.finish_reason, chunk.is_all_text) == (FinishReason.STOP, True)


def test_a_grammar_that_is_complete_with_its_last_token_stops_there_even_at_max_tokens(runner, compiler):
    spec = GrammarSpec(GrammarKind.REGEX, "[xyz]{4}")
    (chunk,) = constrained(runner, compiler, [spec], [drawn(1, max_tokens=4)])
    assert (len(chunk.token_ids), chunk.finish_reason, chunk.is_all_text) == (4, FinishReason.STOP, True)


def test_an_answer_that_may_end_or_go_on_ends_with_the_end_token_but_not_before_min_tokens(runner, compiler):
    spec = GrammarSpec(GrammarKind.REGEX, "x+")
    wants_to_end = {"logit_bias": ((EOS, 100.0),)}
    first, later = constrained(
        runner, compiler, [spec] * 2, [drawn(1, **wants_to_end), drawn(1, min_tokens=9, **wants_to_end)]
    )
    assert (text_of(first.token_ids), first.token_ids[-1], first.is_all_text) == ("x", EOS, False)
    assert (text_of(later.token_ids), later.token_ids[-1]) == ("x" * 9, EOS)


def test_a_complete_grammar_ends_before_min_tokens(runner, compiler):
    specs = [GrammarSpec(GrammarKind.REGEX, "xy"), GrammarSpec(GrammarKind.REGEX, "")]
    chunks = constrained(runner, compiler, specs, [drawn(1, min_tokens=20)] * 2)
    assert [text_of(chunk.token_ids) for chunk in chunks] == ["xy", ""]
    assert {chunk.finish_reason for chunk in chunks} == {FinishReason.STOP}


def test_ignoring_the_end_token_the_grammar_still_ends_the_answer(runner, compiler):
    ignoring = SamplingParams(50, seed=1, logit_bias=((EOS, 100.0),))
    (chunk,) = constrained(runner, compiler, [GrammarSpec(GrammarKind.REGEX, "x+")], [ignoring])
    assert (text_of(chunk.token_ids), chunk.finish_reason) == ("x", FinishReason.STOP)


def test_held_answers_do_not_depend_on_the_batch_and_free_ones_beside_them_are_as_alone(runner, compiler):
    specs = [*(schema_spec(schema) for schema in SCHEMAS), None, GrammarSpec(GrammarKind.REGEX, "[a-f]{20}"), None]
    samplings = [drawn(seed, max_tokens=60) for seed in range(len(specs))]

    def constraint(spec):
        return spec and compiler.compile(spec)

    together = answer_chunks(runner, [PROMPT] * len(specs), samplings, constraints=[constraint(spec) for spec in specs])
    alone = [
        answer_chunks(runner, [PROMPT], [sampling], constraints=[constraint(spec)])[0]
        for spec, sampling in zip(specs, samplings, strict=True)
    ]
    assert [chunk.token_ids for chunk in together] == [chunk.token_ids for chunk in alone]


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**40), lost_after=st.sets(st.integers(1, 15)), penalty=st.sampled_from([0.0, 1.5]))
def test_an_answer_whose_keys_were_lost_and_computed_again_goes_on_as_if_nothing_had_been(
    runner, compiler, seed, lost_after, penalty
):
    sampling = drawn(seed, frequency_penalty=penalty, repetition_penalty=1 + penalty)
    spec = schema_spec(SCHEMAS[1])
    undisturbed = step_by_step(runner, compiler.compile(spec), sampling, lost_after=set())
    assert step_by_step(runner, compiler.compile(spec), sampling, lost_after=lost_after) == undisturbed


def step_by_step(runner, constraint, sampling, *, lost_after, num_tokens=16) -> list[int]:
    """One request's tokens; after some of them its keys and values are lost and everything is computed again."""
    token_ids, start, first_block = list(PROMPT), 0, 0
    extras = RowExtras(TokenHistory(token_ids, len(PROMPT)) if sampling.has_penalties else None, constraint)
    while len(token_ids) < len(PROMPT) + num_tokens and not constraint.is_finished:
        num_outputs = len(token_ids) - len(PROMPT)
        if num_outputs in lost_after:
            start, first_block = 0, first_block + 4
        table = tuple(range(first_block, first_block + 4))
        row = ScheduledRow("r", tuple(token_ids[start:]), start, (table,), sampling, num_outputs, extras)
        results = {runner.run(StepBatch((row,)))[0] for _ in range(2)}
        assert len(results) == 1, "a row that is computed twice gives the same"
        token_id = results.pop().token_id
        start = len(token_ids)
        if token_id == EOS:
            break
        constraint.advance(token_id)
        token_ids.append(token_id)
    return token_ids


def test_a_preempted_spot_request_continues_its_form_and_its_penalties(runner, compiler):
    spot = Terms(service_class=ServiceClass.SPOT)
    sampling = drawn(11, max_tokens=60, frequency_penalty=0.4, min_p=0.01, num_logprobs=1)
    limits = BudgetLimits(itl_seconds=10.0, max_step_tokens=256)

    def answer(*, preempted_after: set[int]) -> tuple[int, ...]:
        engine = Engine(
            runner, slots=4, limits=limits, clock=time.perf_counter, counters=Counters(), has_prefix_cache=False
        )
        request = new_request(
            "r", PROMPT, sampling, arrival_seconds=0.0, terms=spot, constraint=compiler.compile(schema_spec(SCHEMAS[1]))
        )
        engine.queue.add(request)
        while not request.finish_reason:
            engine.step()
            if request.num_outputs in preempted_after and not request.finish_reason:
                preempted_after = preempted_after - {request.num_outputs}
                engine.scheduler.preempt(request)
        assert request.num_preemptions == (3 if engine.counters.preemptions else 0)
        return tuple(request.output_token_ids)

    undisturbed = answer(preempted_after=set())
    assert len(undisturbed) > 8
    assert answer(preempted_after={1, 4, 5}) == undisturbed


def test_a_copy_follows_its_own_way(compiler):
    first = compiler.compile(GrammarSpec(GrammarKind.REGEX, "ab|cd"))
    second = first.copy()
    first.advance(TOKENS.index(b"a"))
    second.advance(TOKENS.index(b"c"))
    assert first.mask() != second.mask()
    first.advance(TOKENS.index(b"b"))
    assert (first.is_finished, second.is_finished) == (True, False)


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        (GrammarKind.REGEX, "(", "unclosed group"),
        (GrammarKind.REGEX, "(?=a)b", "look-ahead"),
        (GrammarKind.REGEX, r"[^\s\S]", "no text matches it"),
        (GrammarKind.REGEX, "(" * 100_000, "cannot be compiled"),
        (GrammarKind.CHOICE, "[]", "at least one text"),
        (GrammarKind.CHOICE, "[1]", "at least one text"),
        (GrammarKind.JSON_SCHEMA, '{"type": "objekt"}', "objekt"),
        (GrammarKind.JSON_SCHEMA, '{"type"', "EOF"),
        (GrammarKind.JSON_SCHEMA, '{"if": {}, "unevaluatedItems": false}', "Unimplemented keys"),
        (GrammarKind.JSON_SCHEMA, '{"type": "integer", "minimum": 5, "maximum": 3}', "Unsatisfiable"),
        (GrammarKind.JSON_SCHEMA, '{"$ref": "http://localhost/x"}', "does not fetch"),
        (GrammarKind.JSON_SCHEMA, '{"$ref": "#"}', "no text matches it"),
        (GrammarKind.JSON_SCHEMA, '{"properties": {"a": ' * 1000 + "{}" + "}}" * 1000, "recursion limit"),
        (GrammarKind.JSON_SCHEMA, '{"title": "\ud800"}', "cannot be read"),
        (GrammarKind.JSON_SCHEMA, json.dumps({"enum": ["x" * 100] * 2000}), f"at most {MAX_SPEC_BYTES}"),
        (GrammarKind.JSON_SCHEMA, '{"type": "integer", "multipleOf": 99999999}', "multipleOf"),
        (GrammarKind.JSON_SCHEMA, '{"type": "integer", "multiple\\u004ff": -99999999.0}', "multipleOf"),
        (
            GrammarKind.JSON_SCHEMA,
            '{"allOf": [{"multipleOf": 101}, {"multipleOf": 103}, {"multipleOf": 107}]}',
            "least",
        ),
        (GrammarKind.GRAMMAR, 'start: %json {"type": "integer", "multipleOf": 99999999}', "multipleOf"),
        (GrammarKind.REGEX, "((a{100}){100}){100}", "too many expressions"),
        (GrammarKind.REGEX, "(a?){500}a{500}", "too many expressions"),
        (GrammarKind.GRAMMAR, 'start: "a" start', "Too many items"),
        (GrammarKind.GRAMMAR, "", "Empty grammar|cannot be"),
        (GrammarKind.GRAMMAR, 'start: "a', "lexer error"),
        (GrammarKind.GRAMMAR, 'root ::= "a', "end of input"),
        (GrammarKind.GRAMMAR, "start: missing", "missing"),
        (GrammarKind.GRAMMAR, "start: start", "no text matches it"),
        (GrammarKind.GRAMMAR, "start: " + "(" * 50_000 + '"a"' + ")" * 50_000, "too deeply nested"),
        (GrammarKind.GRAMMAR, "root ::= " + "(" * 50_000 + '"a"' + ")" * 50_000, "recursion"),
    ],
)
def test_a_bad_grammar_is_refused_with_what_is_wrong_and_the_next_one_compiles(compiler, kind, text, message):
    with pytest.raises(BadGrammar, match=message):
        compiler.compile(GrammarSpec(kind, text))
    assert compiler.compile(GrammarSpec(GrammarKind.REGEX, "a")).mask()


@pytest.mark.parametrize("divisor", [7, 0.01, 0.25, 2.5, 100, 1000])
def test_numbers_may_be_multiples_of_a_usual_divisor(compiler, divisor):
    assert compiler.compile(schema_spec({"type": "number", "multipleOf": divisor})).mask()


LONG_CHAINS = """
import json
from tidegate_engine.grammar.compiler import GrammarCompiler
from tidegate_engine.grammar.spec import GrammarKind, GrammarSpec
from tidegate_engine.text.byte_codec import ByteCodec
defs = {str(i): {"items": {"$ref": f"#/$defs/{i + 1}"}} for i in range(1300)} | {"1300": {}}
schema = json.dumps({"$defs": defs, "$ref": "#/$defs/0"}, separators=(",", ":"))
rules = "start:a0\\n" + "".join(f"a{i:x}:a{i + 1:x}\\n" for i in range(9000)) + f'a{9000:x}: "a"'
compiler = GrammarCompiler(ByteCodec().vocabulary)
for kind, text in ((GrammarKind.JSON_SCHEMA, schema), (GrammarKind.GRAMMAR, rules)):
    compiler.compile(GrammarSpec(kind, text)).mask()
"""


def test_a_chain_of_thousands_of_rules_does_not_end_the_process():
    """On a thread with a usual stack the grammar library overflows it, and the process is gone."""
    subprocess.run([sys.executable, "-c", LONG_CHAINS], check=True, env={"PYTHONPATH": ":".join(sys.path)}, timeout=120)


def test_a_grammar_that_becomes_too_costly_fails_its_own_request_only(runner, compiler):
    doubling = "start: /[bc]{3}/ r0\n" + "".join(f"r{i}: r{i + 1} r{i + 1}\n" for i in range(60)) + 'r60: "a"'
    specs = [GrammarSpec(GrammarKind.REGEX, "[a-c]{9}"), GrammarSpec(GrammarKind.GRAMMAR, doubling)]
    held, failed = constrained(runner, compiler, specs, [drawn(1)] * 2)
    assert (len(text_of(held.token_ids)), held.finish_reason) == (9, FinishReason.STOP)
    assert failed.finish_reason is FinishReason.ERROR


def test_a_token_that_the_grammar_does_not_allow_is_an_error(compiler):
    matcher = compiler.compile(GrammarSpec(GrammarKind.REGEX, "ab"))
    with pytest.raises(GrammarFailed, match="cannot be followed"):
        matcher.advance(TOKENS.index(b"z"))


def test_the_vocabulary_is_read_before_the_first_grammar_and_once_however_many_come_at_a_time():
    reads = []

    def load() -> TokenVocabulary:
        reads.append(threading.current_thread().name)
        return vocabulary()

    compiler = GrammarCompiler(load)
    assert not reads
    compiler.prepare().result()
    threads = [
        threading.Thread(target=compiler.compile, args=(GrammarSpec(GrammarKind.REGEX, f"a{{{i}}}"),))
        for i in range(1, 9)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    compiler.close()
    assert len(reads) == 1
    assert reads[0].startswith("grammar")


def test_without_an_end_token_there_are_no_grammars():
    compiler = GrammarCompiler(lambda: TokenVocabulary([b"a"], frozenset(), frozenset(), lambda _: [0]))
    compiler.prepare().result()
    with pytest.raises(BadGrammar, match="no end token"):
        compiler.compile(ANY_JSON_OBJECT)
    compiler.close()
