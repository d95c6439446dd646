"""A device that is lost ends the engine, soon and with words; devices end with the engine."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
import torch

from running import greedy_params
from serving import ENGINE_ROOT, engine_process
from soak.model import write_model
from tidegate_core.termination import ExitCode
from tidegate_engine.errors import EngineFailed
from tidegate_engine.parallel.crew import Crew, FollowerLost
from tidegate_engine.parallel.group import DeviceGroup
from tidegate_engine.parallel.leader import Leader
from tidegate_engine.parallel.share import Share
from tidegate_engine.runner import ScheduledRow
from tidegate_engine.scheduling.isolation import run_isolated
from waiting import eventually


def is_running(pid: int) -> bool:
    """A zombie is not, whoever its parent is by now."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


class OutOfMemory:
    """The first device's shard."""

    cache = SimpleNamespace(block_size=16)
    device = torch.device("cpu")

    def hidden_of(self, tensors):
        raise RuntimeError("out of memory")


class HiddenOnly:
    """A runner, as far as isolation knows one."""

    def __init__(self, leader: Leader) -> None:
        self.leader = leader
        self.num_runs = 0

    def run(self, batch):
        self.num_runs += 1
        return self.leader.hidden(batch.rows)


def test_a_failure_inside_the_model_ends_the_engine_and_runs_nothing_again():
    """The devices have left the step at different places: nobody can compute with them any more."""
    crew = Crew(1)
    runner = HiddenOnly(Leader(crew, DeviceGroup(Share(0, 1)), OutOfMemory(), vocab_size=9, followers_bytes=0))
    rows = tuple(ScheduledRow(name, (1,), 0, ((0,),), greedy_params(1), 0) for name in "ab")
    with pytest.raises(EngineFailed, match=r"rank 0 of 1 failed .* RuntimeError: out of memory") as failed:
        run_isolated(runner, rows)
    assert runner.num_runs == 1
    assert crew.fault is failed.value
    crew.close()


def test_a_device_that_is_killed_while_it_starts_is_named():
    crew = Crew(3)
    subprocess.run(["kill", "-KILL", str(crew.pids[1])], check=True)
    with pytest.raises(FollowerLost, match="rank 2 of 3 was ended by SIGKILL"):
        crew.receive()
    crew.close()
    assert not any(map(is_running, crew.pids))


def test_a_command_to_a_device_that_is_gone_tells_how_it_ended():
    crew = Crew(2)
    subprocess.run(["kill", "-KILL", str(crew.pids[0])], check=True)
    eventually(lambda: crew.fault is not None, timeout_seconds=30)
    with pytest.raises(FollowerLost, match="rank 1 of 2 was ended by SIGKILL"):
        crew.send("whatever")
    crew.close()


def test_a_device_starts_whatever_lies_in_the_folder_that_the_engine_was_started_in(tmp_path):
    (tmp_path / "logging.py").write_text("raise RuntimeError('somebody else is meant')")
    code = "from tidegate_engine.parallel.crew import Crew; Crew(2).close()"
    command = [sys.executable, "-P", "-c", code]
    env = {"PYTHONPATH": str(ENGINE_ROOT)}
    ended = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    assert not ended.stderr


def test_devices_end_when_the_first_is_killed():
    code = (
        "import signal; from tidegate_engine.parallel.crew import Crew; print(*Crew(2).pids, flush=1); signal.pause()"
    )
    first = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env={"PYTHONPATH": str(ENGINE_ROOT)})
    with first:
        pid = int(first.stdout.readline())
        assert is_running(pid)
        first.kill()
    eventually(lambda: not is_running(pid), timeout_seconds=30)


def test_an_engine_on_two_devices_serves_ignores_signals_to_the_second_and_ends_with_it(tmp_path):
    flags = ("--tensor-parallel", "2", "--kv-memory", "4Mi", "--threads", "2", "--attention", "reference")
    with engine_process(str(write_model(tmp_path)), *flags) as engine:
        first, second = engine.event("devices")["pids"]
        assert first == engine.process.pid
        subprocess.run(["kill", "-TERM", str(second)], check=True)
        asked = {"model": engine.event("ready")["models"][0], "prompt": "tide", "max_tokens": 4}
        assert httpx.post(f"{engine.url}/v1/completions", json=asked, timeout=60).json()["usage"]["completion_tokens"]
        subprocess.run(["kill", "-KILL", str(second)], check=True)
        assert engine.wait(15) == ExitCode.INTERNAL
        failed = engine.event("failed")
    assert failed["reason"] == "EngineFailed"
    assert "rank 1 of 2 was ended by SIGKILL" in failed["message"]
