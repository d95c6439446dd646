"""How an engine process starts, drains and ends, seen from outside."""

import asyncio
import gc
import hashlib
import json
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest

from serving import ENGINE_ROOT, EngineUnderTest, engine_process
from tidegate_core.launch import EngineLaunch, RunnerKind
from tidegate_core.termination import ExitCode
from tidegate_engine.process.exits import EngineStuck
from tidegate_engine.process.lifecycle import StopSignals
from tidegate_engine.serve import load_uncollected, until_stop
from tidegate_engine.server.admin import Phase, ProcessState
from waiting import eventually

SIM = ("--runner", "sim", "--context", "2048", "--served-name", "rehearsal")
LONG = {"model": "rehearsal", "prompt": "x", "max_tokens": 60, "stream": True, "ignore_eos": True}  # 20 ms a token
ENDLESS = {**LONG, "max_tokens": 2000}


class StreamInBackground:
    """A streamed request and what came of it."""

    def __init__(self, engine: EngineUnderTest, body: dict) -> None:
        self.text = ""
        self._thread = threading.Thread(target=self._read, args=(engine.url, body), daemon=True)
        self._thread.start()
        eventually(lambda: "data: " in self.text, what="the first token")

    def _read(self, url: str, body: dict) -> None:
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as response:
            for part in response.iter_text():
                self.text += part

    def documents(self) -> list[dict]:
        """Of the finished stream."""
        self._thread.join(60)
        *events, done, rest = self.text.split("\n\n")
        assert (done, rest) == ("data: [DONE]", "")
        return [json.loads(event.removeprefix("data: ")) for event in events]


def test_after_sigterm_it_answers_for_a_moment_refuses_new_finishes_the_rest_and_exits_0():
    with engine_process("sim", *SIM, "--drain-seconds", "20") as engine:
        running = StreamInBackground(engine, {**LONG, "max_tokens": 200})
        engine.terminate()
        eventually(lambda: httpx.get(f"{engine.admin_url}/readyz").status_code == 503, timeout_seconds=5)
        lame_duck = httpx.post(f"{engine.url}/v1/completions", json={**LONG, "max_tokens": 1, "stream": False})
        refused = eventually(lambda: refusal(engine), timeout_seconds=10, what="a refusal")
        alive = httpx.get(f"{engine.admin_url}/livez")
        documents = running.documents()
        assert engine.wait() == ExitCode.OK
    assert lame_duck.status_code == 200
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "draining"
    assert refused.headers["connection"] == "close"
    assert "retry-after" in refused.headers
    assert alive.status_code == 200
    assert documents[-1]["choices"][0]["finish_reason"] == "length"
    assert [event["event"] for event in engine.events] == ["listening", "ready", "stopping", "drained", "stopped"]


def refusal(engine: EngineUnderTest) -> httpx.Response | None:
    response = httpx.post(f"{engine.url}/v1/completions", json={**LONG, "max_tokens": 1, "stream": False})
    return response if response.status_code == 503 else None


def test_what_does_not_finish_within_the_grace_ends_with_an_error_event():
    with engine_process("sim", *SIM, "--drain-seconds", "1") as engine:
        running = StreamInBackground(engine, ENDLESS)
        engine.terminate()
        documents = running.documents()
        assert engine.wait() == ExitCode.OK
    assert documents[-1]["error"]["code"] == "aborted"
    assert all("error" not in document for document in documents[:-1])
    drained = engine.event("drained")
    assert drained["unfinished"] == 1
    assert drained["uptimeSeconds"] >= engine.event("ready")["seconds"]


def test_a_second_signal_ends_the_grace():
    with engine_process("sim", *SIM, "--drain-seconds", "600") as engine:
        running = StreamInBackground(engine, ENDLESS)
        engine.terminate()
        engine.event("stopping")
        engine.process.send_signal(signal.SIGINT)
        assert running.documents()[-1]["error"]["code"] == "aborted"
        assert engine.wait() == ExitCode.OK


def test_an_operators_drain_can_be_taken_back():
    digest = hashlib.sha256(b"secret").hexdigest()
    with engine_process("sim", *SIM, "--drain-token-sha256", digest) as engine:
        running = StreamInBackground(engine, LONG)
        headers = {"Authorization": "Bearer secret"}
        drained = httpx.post(f"{engine.admin_url}/drain", headers=headers).json()
        assert refusal(engine).json()["error"]["code"] == "draining"
        assert running.documents()[-1]["choices"][0]["finish_reason"] == "length"
        undrained = httpx.post(f"{engine.admin_url}/undrain", headers=headers).json()
        assert refusal(engine) is None
    assert (drained["draining"], undrained["draining"]) == (True, False)


@pytest.fixture
def slow_model(tmp_path: Path) -> Path:
    """A template that never comes: reading a pipe without a writer takes as long as loading the largest model."""
    import os

    template = tmp_path / "template.jinja"
    os.mkfifo(template)
    return template


def test_while_it_loads_the_admin_port_answers_the_api_port_refuses_and_sigterm_ends_it(slow_model):
    with engine_process("sim", *SIM, "--chat-template", str(slow_model), is_ready=False) as engine:
        assert httpx.get(f"{engine.admin_url}/livez").status_code == 200
        readyz = httpx.get(f"{engine.admin_url}/readyz")
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{engine.url}/v1/models")
        engine.terminate()
        assert engine.wait(10) == ExitCode.OK
    assert readyz.status_code == 503
    assert readyz.json()["reason"] == "loading"


def test_a_signal_before_the_event_loop_runs_is_a_stop_too():
    """Without a handler the first process of a container would ignore it."""
    code = (
        "import os, signal\n"
        "from tidegate_engine.process.lifecycle import exit_on_signals\n"
        "exit_on_signals()\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "raise SystemExit('it goes on')\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], check=False, env={"PYTHONPATH": str(ENGINE_ROOT)})
    assert ended.returncode == ExitCode.OK


def test_what_was_loaded_is_left_alone_by_later_garbage_collections_which_are_rarer_than_steps():
    threshold = gc.get_threshold()
    try:
        load_uncollected(EngineLaunch(model="sim", runner=RunnerKind.SIM))
        assert gc.get_freeze_count() > 0
        assert gc.isenabled()
        assert gc.get_threshold()[0] > 10 * 1500
    finally:
        gc.unfreeze()
        gc.set_threshold(*threshold)


def failing(model: str, *arguments: str) -> tuple[int, dict]:
    """Exit code and `failed` event of an engine that does not start."""
    with engine_process(model, *arguments, is_ready=False, is_listening=False) as engine:
        code = engine.wait()
        return code, engine.event("failed")


def test_a_model_that_is_not_there_exits_unreachable_before_anything_is_said_to_listen(tmp_path):
    with engine_process(str(tmp_path / "nothing"), is_ready=False, is_listening=False) as engine:
        assert engine.wait() == ExitCode.MODEL_UNREACHABLE
        failed = engine.event("failed")
    assert [event["event"] for event in engine.events] == ["failed"]
    assert failed["reason"] == "ModelUnreachable"
    assert str(tmp_path / "nothing") in failed["message"]


def test_a_model_of_an_unknown_architecture_exits_unsupported(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "perceptron", "architectures": ["PerceptronForCausalLM"]}')
    code, event = failing(str(tmp_path))
    assert code == ExitCode.MODEL_UNSUPPORTED
    assert "perceptron" in event["message"].lower()


def test_a_truncated_model_exits_unsupported(tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"GGUF\x03\x00\x00\x00")
    code, event = failing(str(tmp_path))
    assert code == ExitCode.MODEL_UNSUPPORTED
    assert event["reason"] == "ModelCorrupt"
    assert "model.gguf" in event["message"]


def test_a_chat_template_that_cannot_be_read_is_a_bad_argument():
    code, event = failing("sim", *SIM, "--chat-template", "/no/such/template")
    assert code == ExitCode.BAD_ARGUMENTS
    assert "/no/such/template" in event["message"]


@pytest.mark.parametrize("flag", ["--port", "--admin-port"])
def test_a_port_in_use_is_a_bad_argument_that_is_named(flag):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, event = failing("sim", *SIM, flag, port)
    assert code == ExitCode.BAD_ARGUMENTS
    assert f"port {port}: Address already in use; choose another {flag}" in event["message"]


def test_arguments_that_make_no_contract_are_a_bad_argument(capfd):
    from tidegate_engine.__main__ import main

    assert main(["model", "--port", "many"]) == ExitCode.BAD_ARGUMENTS
    assert "--port" in capfd.readouterr().err
    assert EngineLaunch.from_args(["model"]).port == 8000


def test_a_process_whose_engine_makes_no_progress_ends_itself():
    class Frozen:
        is_draining = False
        is_stuck = True

    with pytest.raises(EngineStuck, match="far longer than one can"):
        asyncio.run(until_stop(ProcessState(Phase.SERVING, Frozen()), StopSignals()))
