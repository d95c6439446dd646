"""The launch contract survives its arguments, and a wrong argument is named."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from tidegate_core.errors import BadLaunch
from tidegate_core.launch import (
    AttentionKind,
    Device,
    EngineLaunch,
    KvDtype,
    Quantization,
    ReasoningParser,
    RunnerKind,
    Switch,
    ToolParser,
)
from tidegate_core.termination import TERMINATION_MESSAGE_BYTES, TerminationMessage

texts = st.text(st.characters(exclude_categories=["Cs", "Cc"]))
positive = st.integers(1, 2**60)
seconds = st.floats(0.001, 1e6)
fields = {
    "model": texts.filter(lambda text: text and not text.startswith("-")),
    "device": st.sampled_from(Device),
    "tensor_parallel": st.integers(1, 8),
    "runner": st.sampled_from(RunnerKind),
    "host": texts,
    "port": st.integers(0, 65535),
    "admin_port": st.integers(0, 65535),
    "context": st.none() | st.integers(16, 2**24),
    "slots": st.none() | positive,
    "kv_memory": st.none() | positive,
    "kv_dtype": st.sampled_from(KvDtype),
    "quantization": st.none() | st.sampled_from(Quantization),
    "attention": st.sampled_from(AttentionKind),
    "prefix_cache": st.sampled_from(Switch),
    "deterministic": st.booleans(),
    "max_queue": st.integers(0, 10**6),
    "max_queue_tokens": st.none() | positive,
    "max_wait_seconds": seconds,
    "prompt_tokens": positive,
    "output_tokens": positive,
    "itl_ms": seconds,
    "served_name": st.lists(texts, max_size=3).map(tuple),
    "chat_template": st.none() | texts,
    "tool_parser": st.sampled_from(ToolParser),
    "reasoning_parser": st.sampled_from(ReasoningParser),
    "api_keys_file": st.none() | texts,
    "trust_fairness_header": st.booleans(),
    "drain_seconds": st.floats(0, 1e6),
    "drain_token_sha256": st.lists(st.binary(min_size=32, max_size=32).map(bytes.hex), max_size=3).map(tuple),
    "threads": st.none() | st.integers(1, 4096),
    "sim_preemptions_per_minute": st.floats(0, 1e6),
}
launches = st.builds(EngineLaunch, **{name: fields[name] for name in EngineLaunch.model_fields})  # all: a new one too


@given(launches)
@example(EngineLaunch(model="/m", host="--", served_name=("a", "--"), chat_template="--"))
def test_a_launch_survives_its_arguments(launch: EngineLaunch) -> None:
    assert EngineLaunch.from_args(launch.to_args()) == launch


def test_defaults_are_not_spelled() -> None:
    assert EngineLaunch(model="/models/m").to_args() == ["/models/m"]
    assert EngineLaunch(model="/models/m", kv_memory=2**30, served_name=("a", "b")).to_args() == [
        "/models/m",
        "--kv-memory=1Gi",
        "--served-name=a",
        "--served-name=b",
    ]


def test_arguments_may_be_separated_by_a_space_too() -> None:
    launch = EngineLaunch.from_args(["/models/m", "--kv-memory", "1.5Gi", "--device", "cuda"])
    assert (launch.kv_memory, launch.device) == (1_610_612_736, Device.CUDA)


@pytest.mark.parametrize(
    ("args", "word"),
    [
        ([], "model"),
        ([""], "model"),
        (["--", "-m"], "model"),
        (["/m", "--port=eighty"], "--port"),
        (["/m", "--port=70000"], "--port"),
        (["/m", "--port"], "--port"),
        (["/m", "--context=8"], "--context"),
        (["/m", "--slots=0"], "--slots"),
        (["/m", "--drain-token-sha256=é"], "--drain-token-sha256: 'é' is not a SHA-256"),
        (["/m", "--kv-memory=lots"], "--kv-memory.*such as 80Gi"),
        (["/m", "--device=tpu"], "--device"),
        (["/m", "--max-wait-seconds=nan"], "--max-wait-seconds"),
        (["/m", "--drain-seconds=inf"], "--drain-seconds"),
        (["/m", "--itl-ms=-5"], "--itl-ms"),
        (["/m", "--tensor-parallel=9"], "--tensor-parallel"),
        (["/m", "--no-such-flag=1"], "--no-such-flag"),
        (["/m", "--contex=4096"], "--contex"),
        (["/m", "/other"], "/other"),
    ],
)
def test_a_wrong_argument_is_named(args: list[str], word: str) -> None:
    with pytest.raises(BadLaunch, match=word):
        EngineLaunch.from_args(args)


def test_every_wrong_argument_is_named_at_once() -> None:
    with pytest.raises(BadLaunch, match=r"--port.*--slots"):
        EngineLaunch.from_args(["/m", "--port=-1", "--slots=0"])


def test_a_launch_cannot_change() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        EngineLaunch(model="/m").port = 1


@given(texts)
def test_a_termination_message_fits_the_kubelet_and_stays_readable(message: str) -> None:
    text = TerminationMessage(reason="ModelCorrupt", message=message * 200).encode()
    assert len(text.encode()) <= TERMINATION_MESSAGE_BYTES
    read = TerminationMessage.model_validate_json(text)
    assert read.reason == "ModelCorrupt"
    assert (message * 200).startswith(read.message)
