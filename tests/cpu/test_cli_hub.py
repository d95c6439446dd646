"""The commands that ask a hub, as processes with HF_ENDPOINT: what pods run, and `tidegate plan` before they do."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from model_hub.models import NEEDED, tiny_llama
from model_hub.server import ModelHub, model_hub
from tidegate_checkpoint.shape import read_shape
from tidegate_core.inspected import Inspected
from tidegate_core.termination import ExitCode, TerminationMessage

ROOT = Path(__file__).parents[2]
POOL = """
apiVersion: tidegate.dev/v1alpha1
kind: InferencePool
metadata: {name: chat}
spec:
  model: {uri: "hf://tiny/llama", revision: v1}
  accelerator: {memory: 24Gi}
"""


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[ModelHub]:
    gated = tiny_llama(tmp_path / "hub", "tiny/gated", is_gated=True, accepted_tokens={"good"})
    with model_hub(tiny_llama(tmp_path / "hub", refs=("main", "v1")), gated, tokens=("good",)) as serving:
        yield serving


def started(hub: ModelHub, home: Path, *arguments: str, **streams: int) -> "subprocess.Popen[str]":
    """A process as in a pod: no login, no token in its environment."""
    known = {"HF_ENDPOINT": hub.url, "HOME": str(home), "PYTHONPATH": f"{ROOT}/operator:{ROOT}/engine"}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")} | known
    return subprocess.Popen([sys.executable, "-m", "tidegate_cli", *arguments], text=True, env=environment, **streams)


def tidegate(hub: ModelHub, home: Path, *arguments: str, manifest: str = "") -> "subprocess.CompletedProcess[str]":
    """Run to its end."""
    pipe = subprocess.PIPE
    with started(hub, home, *arguments, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        output, errors = process.communicate(manifest)
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def test_a_pods_inspection_leaves_shape_commit_and_size_as_its_last_words(hub: ModelHub, tmp_path: Path) -> None:
    words, token = tmp_path / "words", tmp_path / "token"
    token.write_text("good\n")
    asked = ("inspect", "hf://tiny/gated", "--token-file", str(token), "--termination-message", str(words))
    ended = tidegate(hub, tmp_path, *asked)
    assert ended.returncode == 0, ended.stderr
    answer = Inspected.from_json(words.read_text())
    repository = hub.repositories["tiny/gated"]
    assert answer.shape == read_shape(repository.directory)
    assert answer.snapshot is not None
    assert answer.snapshot.commit == repository.commit
    assert answer.download_bytes > 100_000


def test_a_gated_model_without_a_token_leaves_its_reason_and_an_exit_code_of_its_own(
    hub: ModelHub, tmp_path: Path
) -> None:
    words = tmp_path / "words"
    ended = tidegate(hub, tmp_path, "inspect", "hf://tiny/gated", "--termination-message", str(words))
    left = TerminationMessage.model_validate_json(words.read_text())
    assert (ended.returncode, left.reason) == (ExitCode.ACCESS_DENIED, "ModelGated")
    assert f"accept its terms at {hub.url}/tiny/gated" in left.message
    assert left.message in ended.stderr


def test_an_empty_token_file_is_a_wrong_token(hub: ModelHub, tmp_path: Path) -> None:
    words, token = tmp_path / "words", tmp_path / "token"
    token.touch()
    asked = ("download", "hf://tiny/gated", "--token-file", str(token), "--termination-message", str(words))
    assert tidegate(hub, tmp_path, *asked).returncode == ExitCode.ACCESS_DENIED
    assert TerminationMessage.model_validate_json(words.read_text()).reason == "TokenInvalid"


def test_a_download_says_what_the_cache_holds_and_removes_what_nobody_keeps(hub: ModelHub, tmp_path: Path) -> None:
    words, cache = tmp_path / "words", tmp_path / "cache"
    (cache / "models--old--model" / "snapshots" / ("0" * 40)).mkdir(parents=True)
    commit = hub.repositories["tiny/llama"].commit
    asked = ("download", "hf://tiny/llama", "--revision", commit, "--to", str(cache))
    ended = tidegate(hub, tmp_path, *asked, "--keep", f"tiny/llama@{commit}", "--termination-message", str(words))
    assert ended.returncode == 0, ended.stderr
    assert words.read_text() == f"tiny/llama@{commit}"
    events = [json.loads(line) for line in ended.stdout.splitlines()]
    assert {each["file"] for each in events if each["event"] == "fetched"} == set(NEEDED)
    assert not (cache / "models--old--model").exists()
    assert (cache / "models--tiny--llama" / "snapshots" / commit / "config.json").is_file()


def test_a_download_that_is_told_to_end_does_so_at_once(hub: ModelHub, tmp_path: Path) -> None:
    """Deleted pods must not wait for their grace to pass."""
    hub.faults.num_failing_files = 10_000
    command = ("download", "hf://tiny/llama", "--to", str(tmp_path / "cache"))
    with started(hub, tmp_path, *command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["event"] == "downloading"
        process.terminate()
        assert process.wait(10) == 128 + signal.SIGTERM


def test_a_plan_of_a_hubs_model_asks_the_hub_and_reads_no_weights(hub: ModelHub, tmp_path: Path) -> None:
    ended = tidegate(hub, tmp_path, "plan", "-f", "-", "-o", "json", manifest=POOL)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["weightBytes"] > 0
    assert any(each.path.endswith("/revision/v1") for each in hub.asked)
    assert all(each.range for each in hub.asked if each.path.startswith("/storage/"))


def test_a_plan_whose_hub_has_no_such_model_ends_with_3(hub: ModelHub, tmp_path: Path) -> None:
    ended = tidegate(hub, tmp_path, "plan", "--model", "hf://tiny/none", "--gpu", "L4")
    assert ended.returncode == 3
    assert "tiny/none does not exist" in ended.stderr
