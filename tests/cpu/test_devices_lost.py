"""A device that is lost ends the engine, soon and with words; devices end with the engine."""

import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from running import greedy_params
from serving import ENGINE_ROOT, engine_process
from soak.model import write_model
from tidegate_core.launch import EngineLaunch, ExitCode
from tidegate_engine.attention import reference
from tidegate_engine.compute.shard import Shard
from tidegate_engine.compute.torch_runner import TorchRunner
from tidegate_engine.errors import EngineFailed
from tidegate_engine.parallel.crew import Crew, FollowerLost
from tidegate_engine.parallel.group import DeviceGroup, leave
from tidegate_engine.parallel.leader import Leader, load_together
from tidegate_engine.parallel.share import Share
from tidegate_engine.runner import ScheduledRow, StepBatch
from tidegate_engine.scheduling.isolation import run_isolated
from tiny_models import save_tiny_model
from waiting import eventually


def is_running(pid: int) -> bool:
    """A zombie is not, whoever its parent is by now."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


class OutOfMemoryShard(Shard):
    """Fails on the first device, while the second has begun and waits for its part of a sum."""

    def hidden_of(self, tensors):
        raise RuntimeError("out of memory")


def test_a_failure_inside_the_model_ends_the_engine_and_runs_nothing_again(tmp_path):
    """The devices have left the step at different places: nobody can compute with them any more."""
    save_tiny_model("llama", tmp_path)
    crew = Crew(2)
    launch = EngineLaunch(model=str(tmp_path), kv_memory=2**20, context=64, tensor_parallel=2)
    loaded, plan, leader = load_together(launch, tmp_path, crew, None)
    shard = OutOfMemoryShard(loaded, leader.cache, reference.attend)
    broken = Leader(crew, DeviceGroup(Share(0, 2)), shard, vocab_size=211, followers_bytes=0)
    rows = tuple(ScheduledRow(name, (1,), 0, ((0,),), greedy_params(1), 0) for name in "ab")
    with pytest.raises(EngineFailed, match=r"rank 0 of 2 failed .* RuntimeError: out of memory") as failed:
        run_isolated(TorchRunner(loaded, plan, broken, b"entropy"), rows)
    assert crew.fault is failed.value
    with pytest.raises(EngineFailed, match="out of memory"):
        TorchRunner(loaded, plan, leader, b"entropy").run(StepBatch(rows))
    leave()
    crew.close()


def test_a_device_that_fails_says_what_it_failed_with():
    crew = Crew(2)
    crew.send("nonsense")
    with pytest.raises(FollowerLost, match=r"rank 1 of 2 failed.* TypeError: no command: 'nonsense'"):
        crew.receive()
    crew.close()


def test_a_device_that_is_killed_while_it_starts_is_named():
    crew = Crew(3)
    subprocess.run(["kill", "-KILL", str(crew.pids[1])], check=True)
    with pytest.raises(FollowerLost, match="rank 2 of 3 was ended by SIGKILL"):
        crew.receive()
    crew.close()
    assert not any(map(is_running, crew.pids))


def test_devices_end_when_the_first_is_killed():
    code = (
        "import time; from tidegate_engine.parallel.crew import Crew; print(*Crew(2).pids, flush=True); time.sleep(600)"
    )
    first = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env={"PYTHONPATH": str(ENGINE_ROOT)})
    with first:
        pid = int(first.stdout.readline())
        assert is_running(pid)
        first.kill()
    eventually(lambda: not is_running(pid), timeout_seconds=30)


def test_an_engine_on_two_devices_serves_ignores_signals_to_the_second_and_ends_with_it(tmp_path):
    flags = ("--tensor-parallel", "2", "--kv-memory", "4Mi", "--threads", "2")
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
