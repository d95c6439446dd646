"""Engine flags of a pool: what is taken reaches the pods, what is not is said, and nothing that serves is touched."""

from dataclasses import replace
from pathlib import Path

import pytest

from configs import config_directory
from pools import NOW, SETTINGS, carried_out, cpu_pool_manifest, inspected, pod, pool, settled, stored
from shapes import shape_of
from tidegate_cli.__main__ import main
from tidegate_core.launch import AttentionKind, EngineLaunch, Switch, ToolParser
from tidegate_operator.api.v1alpha1 import InferencePool
from tidegate_operator.decisions.extra_args import FREE, STANDS_FOR, refusal
from tidegate_operator.decisions.planning import plan
from tidegate_operator.decisions.rendering import engine_launch
from tidegate_operator.decisions.revisions import inputs_hash
from tidegate_operator.report.status import status
from tidegate_operator.sizing.fitting import find_fit
from tidegate_operator.world.observed import Observed

OWN = {"model", "runner", "host", "port", "admin_port", "drain_token_sha256", "sim_preemptions_per_minute"}


def with_flags(*flags: str) -> InferencePool:
    return pool(engine={"extraArgs": list(flags)})


def launch_of(subject: InferencePool, observed: Observed) -> EngineLaunch:
    current = plan(subject, observed, SETTINGS, NOW).revisions.current
    assert current is not None
    return EngineLaunch.from_args(current.template["spec"]["containers"][0]["args"][1:])


def conditions_of(subject: InferencePool, observed: Observed) -> dict[str, tuple[str, str, str]]:
    steps = plan(subject, observed, SETTINGS, NOW)
    found = status(subject, observed, steps, (), NOW).conditions
    return {each.type: (each.status, each.reason, each.message) for each in found}


def test_every_flag_of_the_engine_is_free_or_stands_for_a_field_or_is_the_operators_own() -> None:
    assert {*FREE, *STANDS_FOR} | OWN == EngineLaunch.model_fields.keys()
    assert len(FREE) + len(STANDS_FOR) + len(OWN) == len(EngineLaunch.model_fields)


def test_free_flags_are_those_that_no_field_of_the_spec_moves() -> None:
    subject = pool()
    fit = find_fit(subject, shape_of(), None).fit
    assert fit is not None
    assert engine_launch(subject, fit, SETTINGS.engine).model_fields_set.isdisjoint(FREE)


def test_flags_reach_the_engine_beside_the_operators_and_roll_the_pods() -> None:
    subject = with_flags("--tool-parser=hermes", "--prefix-cache", "off", "--attention=reference")
    launch = launch_of(subject, settled())
    assert (launch.tool_parser, launch.prefix_cache) == (ToolParser.HERMES, Switch.OFF)
    assert launch.attention is AttentionKind.REFERENCE
    assert launch.slots == launch_of(pool(), settled()).slots
    assert inputs_hash(subject) != inputs_hash(pool())
    assert inputs_hash(with_flags()) == inputs_hash(pool())


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--enable-magic"], "unrecognized arguments: --enable-magic; `tidegate serve --help` lists the flags"),
        (["prefix-cache=off"], "unrecognized arguments: prefix-cache=off"),
        (["--prefix-cache=maybe"], "--prefix-cache: Input should be 'on' or 'off'"),
        (["--threads=0"], "--threads: Input should be greater than or equal to 1"),
        (["--threads=99999999999999999999"], "--threads: Input should be less than or equal to 4096"),
        (["--threads"], "--threads: expected one argument"),
        (["--context=9"], "--context: Input should be greater"),
        (["--context=4096"], "--context is set by context.max; change that instead"),
        (
            ["--kv-dtype=int8", "--slots=9"],
            "--slots is set by traffic; change that instead; --kv-dtype is set by model.kvCacheDtype",
        ),
        (["--port=80"], "--port is the operator's own; leave it out"),
        (["--deterministic"], "--deterministic is for cpu pools"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)
def test_what_is_refused_is_said_with_what_to_do(flags: list[str], said: str) -> None:
    assert refusal(with_flags(*flags)).startswith("engine.extraArgs: ")
    assert said in refusal(with_flags(*flags))


def test_a_cpu_pool_may_be_deterministic() -> None:
    assert refusal(stored(cpu_pool_manifest(engine={"extraArgs": ["--deterministic"]}))) == ""


def test_a_new_pool_with_a_bad_flag_is_stalled_with_the_sentence_and_deploys_nothing() -> None:
    subject, observed = with_flags("--port=80"), Observed(inspections=(inspected(),))
    found = conditions_of(subject, observed)
    assert found["Stalled"] == ("True", "EngineArgsRefused", refusal(subject))
    assert found["Fits"][0] == "True"
    assert not any(each["kind"] == "Deployment" for each in plan(subject, observed, SETTINGS, NOW).apply)


def test_a_bad_flag_leaves_what_serves_and_its_correction_rolls() -> None:
    observed = settled()
    current = plan(pool(), observed, SETTINGS, NOW).revisions.current
    assert current is not None
    observed = replace(observed, pods=(pod(template=current.template_hash),))
    observed = carried_out(observed, plan(pool(), observed, SETTINGS, NOW))
    bad = with_flags("--enable-magic")
    assert plan(bad, observed, SETTINGS, NOW).is_satisfied
    found = conditions_of(bad, observed)
    assert found["Ready"][:2] == ("False", "EngineArgsRefused")
    assert found["Ready"][2].endswith(
        "1 replica goes on serving with the last template that fitted (context 4,096, 26 slots)"
    )
    assert found["Available"][0] == "True"
    assert found["Fits"][2] == conditions_of(pool(), observed)["Fits"][2]
    good = with_flags("--tool-parser=none")
    after = carried_out(observed, plan(good, observed, SETTINGS, NOW))
    assert launch_of(good, after).tool_parser is ToolParser.NONE
    assert "Stalled" not in conditions_of(good, after)


def test_the_command_refuses_the_same_flags(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pool.yaml").write_text(
        "apiVersion: tidegate.dev/v1alpha1\n"
        "kind: InferencePool\n"
        "metadata: {name: chat}\n"
        "spec: {model: {uri: pvc://models/m}, accelerator: {memory: 80Gi}, engine: {extraArgs: [--port=80]}}\n"
    )
    model = str(config_directory(tmp_path / "qwen3-8b"))
    assert main(["plan", "-f", str(tmp_path / "pool.yaml"), "--model", model]) == 2
    assert "--port is the operator's own; leave it out" in capsys.readouterr().err
