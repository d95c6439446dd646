"""A real engine process for tests: started on free ports, its event lines read, always ended."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from waiting import eventually

ENGINE_ROOT = Path(__file__).parent.parent / "engine"
START_SECONDS = 300.0  # a real model takes two minutes where other tests want the same cores
FREE_PORTS = ("--port", "0", "--admin-port", "0")


@dataclass
class EngineUnderTest:
    process: subprocess.Popen[str]
    events: list[dict] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    started_seconds: float = field(default_factory=time.monotonic)
    ready_seconds: float = 0.0

    def event(self, name: str, *, timeout_seconds: float = START_SECONDS) -> dict:
        """The first event of this name, waited for; fails early if the process ends without it."""

        def found() -> dict | None:
            for event in list(self.events):
                if event["event"] == name:
                    return event
            if self.process.poll() is not None and not any(reader.is_alive() for reader in self._readers):
                raise RuntimeError(f"the engine ended ({self.process.returncode}) without '{name}':\n{self.output()}")
            return None

        return eventually(found, timeout_seconds=timeout_seconds, what=f"event '{name}'")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.event('listening')['port']}"

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self.event('listening')['adminPort']}"

    def load(self) -> dict:
        return httpx.get(f"{self.admin_url}/load").raise_for_status().json()

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def wait(self, timeout_seconds: float = 30.0) -> int:
        return self.process.wait(timeout_seconds)

    def output(self) -> str:
        return "".join(self.log)

    def read(self) -> None:
        self._readers = [
            threading.Thread(target=self._read_events, daemon=True),
            threading.Thread(target=lambda: self.log.extend(self.process.stderr), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def join(self) -> None:
        for reader in self._readers:
            reader.join()

    def _read_events(self) -> None:
        for line in self.process.stdout:
            self.log.append(line)
            self.events.append(json.loads(line))


@contextmanager
def engine_process(
    model: str,
    *args: str,
    is_ready: bool = True,
    is_listening: bool = True,
    program: Sequence[str] = ("-m", "tidegate_engine"),
) -> Iterator[EngineUnderTest]:
    """`python -m tidegate_engine MODEL ...` on free local ports, by default ready before it is handed out."""
    command = [sys.executable, *program, model, "--host", "127.0.0.1", *FREE_PORTS]
    environment = {**os.environ, "PYTHONPATH": str(ENGINE_ROOT)}
    process = subprocess.Popen(
        [*command, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    engine = EngineUnderTest(process)
    engine.read()
    try:
        if is_listening:
            engine.event("ready" if is_ready else "listening")
            engine.ready_seconds = time.monotonic() - engine.started_seconds
        yield engine
    finally:
        process.kill()
        process.wait()
        engine.join()
        process.stdout.close()
        process.stderr.close()
