"""`tidegate plan` from a config.json alone: exit codes, JSON keys, the table, manifests."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from configs import config_directory
from tidegate_checkpoint.config_json import SERVED
from tidegate_cli.__main__ import main

KEYS = {
    "weightBytes",
    "kvBytesPerToken",
    "kvFixedBytesPerSequence",
    "perGpu",
    "kvBlocks",
    "context",
    "slots",
    "tensorParallel",
    "loadingBytes",
    "residentBytes",
    "fits",
    "served",
    "message",
    "warnings",
    "device",
    "bindingConstraint",
    "smaller",
    "larger",
    "remedies",
}
POOL = """
apiVersion: tidegate.dev/v1alpha1
kind: InferencePool
metadata: {name: chat}
spec:
  model: {uri: pvc://models/qwen3-8b}
  context: {max: 8192, min: 4096}
  traffic: {promptTokens: 500, outputTokens: 100}
  accelerator: {memory: 80Gi}
"""


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(config_directory(tmp_path / "qwen3-8b"))


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    (tmp_path / "pool.yaml").write_text(POOL)
    return tmp_path / "pool.yaml"


def planned(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, dict]:
    code = main(["plan", *argv, "-o", "json"])
    return code, json.loads(capsys.readouterr().out)


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str]:
    code = main(["plan", *argv])
    written = capsys.readouterr()
    assert written.out == ""
    return code, written.err


def test_json_has_the_documented_keys_and_golden_values(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, fit = planned(capsys, "--model", model, "--gpu", "H100", "--context", "8192")
    assert code == 0
    assert set(fit) == KEYS
    assert set(fit["perGpu"]) == {"weightBytes", "kvBytesPerToken"}
    assert fit["kvBytesPerToken"] == fit["perGpu"]["kvBytesPerToken"] == 147_456
    assert fit["weightBytes"] == 2 * 8_190_735_360
    assert (fit["fits"], fit["context"], fit["tensorParallel"], fit["remedies"]) == (True, 8192, 1, [])
    assert fit["slots"] == int(fit["kvBlocks"] * 16 * 0.95 / 1200)
    assert fit["device"] == {"name": "H100-80GB", "memoryBytes": 81_559 * 2**20, "isChosen": False}
    assert (fit["served"], fit["warnings"]) == (True, [])
    assert fit["message"].startswith("fits: ")


def test_json_has_the_offered_load_when_users_are_given(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, fit = planned(capsys, "--model", model, "--gpu", "L4", "--users", "20")
    assert set(fit) == KEYS | {"offeredRequests"}
    assert fit["offeredRequests"] == pytest.approx(20 * 12 / 90)


@pytest.mark.parametrize(("flag", "name"), [("--gpu-memory=24Gi", "GPU"), ("--cpu-memory=24Gi", "CPU")])
def test_json_names_a_device_known_by_its_memory(
    flag: str, name: str, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, fit = planned(capsys, "--model", model, flag)
    assert fit["device"] == {"name": name, "memoryBytes": 24 * 2**30, "isChosen": False}


def test_json_says_which_device_was_chosen(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, fit = planned(capsys, "--model", model, "--context", "8192")
    assert fit["device"] == {"name": "A10", "memoryBytes": 23_028 * 2**20, "isChosen": True}


def test_a_model_that_is_sized_but_not_served_exits_with_4_and_says_what_is_served(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(config_directory(tmp_path / "mixtral", model_type="mixtral", num_local_experts=2))
    code, fit = planned(capsys, "--model", model, "--gpu", "H200", "--context", "4096")
    words = f"mixtral can be sized, but this version does not serve it; served: {', '.join(SERVED)}"
    assert (code, fit["served"], fit["fits"], fit["message"]) == (4, False, True, words)
    assert fit["slots"] > 0
    assert main(["plan", "--model", model, "--gpu", "H200"]) == 4
    assert words in capsys.readouterr().out


def test_a_context_beyond_the_model_is_shown_as_it_was_asked(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--model", model, "--gpu", "H100", "--context", "100000"]) == 0
    assert "asked for 100,000; the model goes to 40,960" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("context", "words"),
    [
        ("1000", "a p90 sequence has 900 + 300 = 1,200 tokens, the context 1,000: such answers are cut short"),
        ("900", "a p90 prompt has 900 tokens, the context 900: such requests are refused"),
    ],
)
def test_traffic_longer_than_the_context_is_warned_about(
    context: str, words: str, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, fit = planned(capsys, "--model", model, "--gpu", "L4", "--context", context)
    assert (code, fit["warnings"]) == (0, [words])
    main(["plan", "--model", model, "--gpu", "L4", "--context", context])
    assert f"warning: {words}" in capsys.readouterr().out


def test_the_replicas_for_so_many_users_are_counted(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--model", model, "--gpu", "L4", "--users", "5000"]) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("replicas needed"))
    assert " ".join(row.split()) == "replicas needed 38 at 18 slots each"


def test_remedies_that_this_version_does_not_offer_come_last_and_say_so(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "--model", model, "--gpu", "T4", "--gpu-count", "1", "--context", "8192"]) == 4
    table = capsys.readouterr().out
    assert re.search("^= missing +3.37 GiB$", table, re.MULTILINE)
    offered, _, others = table.partition("what would help")[2].partition("not offered by this version")
    assert "A10" in offered
    assert "2 GPUs" in offered
    assert "4-bit weights" in others
    assert "4-bit" not in offered


def test_what_does_not_fit_exits_with_4_and_names_remedies(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, fit = planned(capsys, "--model", model, "--gpu-memory", "12Gi", "--gpu-count", "1")
    assert code == 4
    assert (fit["fits"], fit["slots"], fit["bindingConstraint"]) == (False, 0, "weights")
    assert fit["remedies"]
    assert set(fit["remedies"][0]) == {"kind", "description", "context", "slots"}


def test_the_table_shows_every_term_and_the_answer(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--model", model, "--gpu", "L4", "--users", "20"]) == 0
    table = capsys.readouterr().out
    for words in (
        "device memory",
        "- weights",
        "- KV pool",
        "= unused",
        "shrunk from 40,960",
        "slots",
        "offered load",
        "2.7",
    ):
        assert words in table
    assert "what would help" in table


def test_markdown_is_a_verdict_with_tables_for_a_pull_request(
    model: str, pool: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "--model", model, "-f", str(pool), "-o", "markdown"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("### InferencePool chat: fits\n")
    assert "| context | 8,192 |" in said
    assert main(["plan", "--model", model, "--gpu-memory", "3Gi", "-o", "markdown"]) == 4
    refused = capsys.readouterr().out
    assert ": does not fit\n" in refused
    assert "What would help, cheapest first:" in refused


def test_layers_with_a_window_are_shown_by_sequence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kinds = ["full_attention" if i % 6 == 5 else "sliding_attention" for i in range(36)]
    folder = config_directory(tmp_path / "windows", layer_types=kinds, sliding_window=1024, use_sliding_window=True)
    assert main(["plan", "--model", str(folder), "--gpu", "H100", "--context", "8192"]) == 0
    table = capsys.readouterr().out
    assert re.search(r"KV per token +24 KiB", table)
    assert re.search(r"KV per sequence +121.9 MiB +at most, in windows", table)  # 30 layers, 65 blocks, 4 KiB a token


def test_a_cpu_pool_is_planned_by_its_memory_limit(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, fit = planned(capsys, "--model", model, "--cpu-memory", "32Gi")
    assert code == 0
    assert 16 * 10**9 < fit["residentBytes"] < 32 * 2**30


def test_without_a_device_the_smallest_gpu_that_fits_is_chosen(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--model", model]) == 0
    assert "the smallest GPU that fits" in capsys.readouterr().out
    assert main(["plan", "--model", model, "--context", "8192"]) == 0
    assert "on A10 " in capsys.readouterr().out


def test_a_manifest_gives_context_traffic_and_memory(
    model: str, pool: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, fit = planned(capsys, "-f", str(pool), "--model", model)
    assert (code, fit["context"]) == (0, 8192)
    assert fit["slots"] == int(fit["kvBlocks"] * 16 * 0.95 / 600)


def test_flags_win_over_the_manifest(model: str, pool: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, fit = planned(
        capsys, "-f", str(pool), "--model", model, "--context", "1024", "--gpu", "L4", "--prompt-tokens=900"
    )
    assert fit["context"] == 1024
    assert fit["slots"] == int(fit["kvBlocks"] * 16 * 0.95 / 1000)


def test_a_manifest_may_hold_other_objects_too(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "many.yaml").write_text("apiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n---\n" + POOL + "---\n")
    code, _ = planned(capsys, "-f", str(tmp_path / "many.yaml"), "--model", model)
    assert code == 0


def test_a_manifest_s_number_of_devices_is_planned_with_their_shares(
    model: str, pool: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pool.write_text(POOL.replace("memory: 80Gi", "memory: 80Gi, count: 2"))
    code, fit = planned(capsys, "-f", str(pool), "--model", model)
    assert (code, fit["fits"], fit["tensorParallel"]) == (0, True, 2)
    assert fit["weightBytes"] <= 2 * fit["perGpu"]["weightBytes"] < 1.01 * fit["weightBytes"]
    main(["plan", "-f", str(pool), "--model", model])
    table = capsys.readouterr().out
    assert "2 devices a replica, each on a GPU with 80 GiB" in table
    assert "private memory of the engine's 2 processes" in table


def test_a_number_of_gpus_does_not_apply_to_a_cpu_pod(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = refused(capsys, "--model", model, "--cpu-memory", "32Gi", "--gpu-count", "2")
    assert code == 2
    assert "--gpu-count is for GPUs" in said


def test_a_model_takes_the_fewest_of_a_named_gpu_on_which_it_fits(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, fit = planned(capsys, "--model", model, "--gpu", "T4", "--context", "8192")
    assert (code, fit["fits"], fit["tensorParallel"]) == (0, True, 2)


def test_the_answer_has_what_the_next_smaller_and_larger_device_would_give(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, fit = planned(capsys, "--model", model, "--gpu", "L4", "--context", "8192")
    assert (fit["smaller"]["name"], fit["smaller"]["slots"]) == ("V100-16GB", 0)
    assert fit["larger"]["name"] == "RTX-5090"
    assert fit["larger"]["slots"] > fit["slots"]
    main(["plan", "--model", model, "--gpu", "L4", "--context", "8192"])
    table = capsys.readouterr().out
    assert re.search(r"next smaller +V100-16GB +would not fit", table)
    assert re.search(r"next larger +RTX-5090 +would give context 8,192, \d+ slots", table)


def test_a_manifest_may_come_from_standard_input(model: str) -> None:
    command = [sys.executable, "-m", "tidegate_cli", "plan", "-f", "-", "--model", model, "-o", "json"]
    environment = {"PYTHONPATH": ":".join(sys.path)}
    ended = subprocess.run(command, input=POOL, capture_output=True, text=True, check=True, env=environment)
    assert json.loads(ended.stdout)["context"] == 8192


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no InferencePool"),
        ("kind: Deployment\n---\nkind: Service", "holds no InferencePool"),
        (POOL.replace("80Gi", "80"), "spec.accelerator.memory: 80 is 80 bytes; did you mean 80Gi?"),
        (POOL + "---" + POOL, "holds 2 objects"),
        ("{", "is not YAML"),
        ("[" * 3000, "is not YAML"),
        ("a: 2026-13-45", "is not YAML: month must be in 1..12"),
        ("a: 1" + "0" * 5000, "is not YAML"),
        ("#" * 5_000_000, "has more than 4,194,304 characters"),
        (POOL.replace("kind: InferencePool", "kind: [a]"), "found list"),
        ("kind: Deployment", "expected kind InferencePool"),
        (POOL.replace("v1alpha1", "v9"), "apiVersion is tidegate.dev/v9"),
        (POOL.replace("context:", "kontext:"), "spec.kontext"),
        (POOL.replace("80Gi", "80GB"), "80GB"),
        (POOL.replace("pvc://models/qwen3-8b", "s3://bucket"), "pvc://CLAIM/PATH"),
        (POOL.replace("memory: 80Gi", "resource: cpu"), "a cpu pool needs pod.resources.limits.memory"),
    ],
)
def test_a_manifest_that_is_wrong_is_refused_by_field(
    text: str, words: str, model: str, pool: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pool.write_text(text)
    code, message = refused(capsys, "-f", str(pool), "--model", model)
    assert code == 2
    assert words in message


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "give --model DIR, -f POOL.yaml, or both"),
        (["-f", "/nowhere.yaml"], "tidegate plan: /nowhere.yaml cannot be read: No such file or directory\n"),
        (["--model", "MODEL", "--gpu", "A100"], "did you mean A100-40GB or A100-80GB"),
        (["--model", "MODEL", "--gpu-memory", "24GB"], "--gpu-memory: '24GB' is not a size in bytes"),
        (["--model", "MODEL", "--gpu-memory", "24GB"], "such as 80Gi or 500Mi\n"),
        (["--model", "MODEL", "--gpu-memory", "24"], "--gpu-memory: 24 is 24 bytes; did you mean 24Gi?"),
        (["--model", "MODEL", "--cpu-memory", "4096"], "did you mean 4096Mi?"),
        (["--model", "MODEL", "--cpu-memory", "0"], "0 is 0 bytes; write the size of a device"),
        (["--model", "MODEL", "--cpu-memory", "4M"], "4M is 4,000,000 bytes; write the size of a device"),
    ],
)
def test_input_that_leaves_the_question_open_exits_with_2(
    argv: list[str], words: str, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, message = refused(capsys, *(model if arg == "MODEL" else arg for arg in argv))
    assert code == 2
    assert words in message


@pytest.mark.parametrize(
    "argv",
    [
        ["--gpu", "L4", "--gpu-memory", "24Gi"],
        ["--context", "0"],
        ["--context", "many"],
        ["--context", "8k"],
        ["--users", "-1"],
        ["--turn-seconds", "0"],
        ["--generation-seconds", "nan"],
        ["--generation-seconds", "soon"],
        ["-o", "xml"],
        ["--no-such-flag"],
    ],
)
def test_arguments_that_make_no_sense_exit_with_2_in_words_for_people(
    argv: list[str], model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["plan", "--model", model, *argv])
    message = capsys.readouterr().err
    assert argv[0] in message
    assert "_count value" not in message
    assert "float value" not in message


def test_a_model_that_is_not_there_exits_with_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, message = refused(capsys, "--model", str(tmp_path / "absent"), "--gpu", "L4")
    assert code == 3
    assert "does not exist" in message


def test_a_model_inside_the_cluster_exits_with_3_and_says_how_to_plan_it(
    pool: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, message = refused(capsys, "-f", str(pool))
    assert code == 3
    assert "pvc://models/qwen3-8b is inside the cluster; give --model" in message


def test_a_model_of_an_unknown_architecture_exits_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = config_directory(tmp_path / "odd", model_type="perceptron", architectures=["PerceptronForCausalLM"])
    code, message = refused(capsys, "--model", str(model), "--gpu", "L4")
    assert code == 2
    assert "erceptron" in message


def test_a_config_that_is_no_json_exits_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (config_directory(tmp_path / "cut") / "config.json").write_text('{"model_type": "qwen3", "hidd')
    code, message = refused(capsys, "--model", str(tmp_path / "cut"), "--gpu", "L4")
    assert code == 2
    assert "config.json" in message


def test_the_documented_example_is_what_the_command_prints(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    documented = (Path(__file__).parents[2] / "docs" / "sizing.md").read_text()
    assert main(["plan", "--model", model, "--gpu", "L4", "--context", "16384", "--users", "20"]) == 0
    assert capsys.readouterr().out in documented
    assert main(["plan", "--model", model, "--gpu", "T4", "--gpu-count", "1", "--context", "8192"]) == 4
    sections = capsys.readouterr().out.split("\n\n")
    assert "\n\n".join((sections[2], *sections[4:])) in documented
