"""One soak: an engine process under mixed load for a while, then the questions that matter.

`make soak` runs it for half an hour, the tests for seconds. Nobody accepted is lost, no invariant breaks in any step,
memory is flat, and when the last client has gone not one block is held.
"""

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from soak.clients import MODEL, Clients, Judgement
from soak.memory import GROWTH_BYTES, growth_bytes, is_flat, private_bytes
from soak.model import CONTEXT, write_model
from waiting import eventually_async

ROOT = Path(__file__).parents[2]
NUM_CLIENTS = 20
SAMPLE_SECONDS = 5.0
ENGINE = (
    "--deterministic", "--host=127.0.0.1", "--port=0", "--admin-port=0", f"--served-name={MODEL}", "--threads=1",
    f"--context={CONTEXT}", "--slots=10", "--kv-memory=640Ki", "--max-queue=10", "--max-wait-seconds=60",
    "--output-tokens=30", "--prompt-tokens=60",
)  # fmt: skip


@dataclass
class Soak:
    """What a soak saw."""

    judgement: Judgement = field(default_factory=Judgement)
    samples: list[int] = field(default_factory=list)
    load: dict = field(default_factory=dict)
    exit_code: int | None = None

    def faults(self, *, is_long: bool) -> list[str]:
        """Empty when all is well. A short soak says nothing about memory."""
        found = list(self.judgement.faults)
        held = {name: self.load[name] for name in ("running", "waiting", "kvBlocksUsed")}
        if any(held.values()):
            found.append(f"after the last client the engine still holds {held}")
        if self.exit_code != 0:
            found.append(f"the engine ended with {self.exit_code}")
        if is_long and not is_flat(self.samples):
            found.append(f"memory grew by {growth_bytes(self.samples) / 2**20:.1f} MiB: {self.samples}")
        return found


async def soak(seconds: float, seed: int = 0) -> Soak:
    """Raises RuntimeError if the engine dies under way."""
    result = Soak()
    with tempfile.TemporaryDirectory() as folder, engine(write_model(Path(folder))) as (process, url, admin_url):
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            clients = Clients(session, url, result.judgement, seed)
            end = time.monotonic() + seconds
            async with asyncio.TaskGroup() as group:
                group.create_task(_sample(process, result, end))
                for _ in range(NUM_CLIENTS):
                    group.create_task(_keep_asking(process, clients, end))
            result.load = await _settled(session, admin_url)
        process.send_signal(signal.SIGTERM)
        result.exit_code = await asyncio.to_thread(process.wait, 60)
    return result


async def _keep_asking(process: subprocess.Popen, clients: Clients, end: float) -> None:
    while time.monotonic() < end:
        await clients.ask()
        if process.poll() is not None:
            raise RuntimeError(f"the engine ended with {process.returncode} in the middle of the load")


async def _sample(process: subprocess.Popen, result: Soak, end: float) -> None:
    while time.monotonic() < end and process.poll() is None:
        result.samples.append(private_bytes(process.pid))
        await asyncio.sleep(min(SAMPLE_SECONDS, max(0.0, end - time.monotonic())))


async def _settled(session: aiohttp.ClientSession, admin_url: str) -> dict:
    """The last /load, once nothing runs any more or after a while."""

    async def load() -> dict:
        async with session.get(f"{admin_url}/load") as response:
            return await response.json()

    async def is_idle() -> bool:
        return not (await load())["kvBlocksUsed"]

    try:
        await eventually_async(is_idle, timeout_seconds=30)
    except AssertionError:
        return await load()
    return await load()


@contextmanager
def engine(model: Path) -> Iterator[tuple[subprocess.Popen, str, str]]:
    """(process, API URL, admin URL) of a checked engine, ready to serve."""
    command = [sys.executable, str(Path(__file__).parent / "engine.py"), str(model), *ENGINE]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'engine'}:{ROOT / 'tests'}"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        events = {}
        for line in process.stdout:
            event = json.loads(line)
            events[event["event"]] = event
            if "ready" in events:
                break
        ports = events["listening"]
        yield process, f"http://127.0.0.1:{ports['port']}", f"http://127.0.0.1:{ports['adminPort']}"
    finally:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


def main() -> int:
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    result = asyncio.run(soak(arguments.minutes * 60, arguments.seed))
    faults = result.faults(is_long=True)
    for name, count in sorted(result.judgement.seen.items()):
        print(f"{count:>8} {name}")
    refused = sum(count for name, count in result.judgement.seen.items() if name.endswith("refused"))
    print(f"{sum(result.judgement.seen.values())} requests, {refused} of them refused, {len(faults)} faults")
    first, last = result.samples[0] / 2**20, result.samples[-1] / 2**20
    print(f"memory {first:.1f} -> {last:.1f} MiB, growth {growth_bytes(result.samples) / 2**20:.1f} MiB after warm-up")
    print(f"allowed {GROWTH_BYTES / 2**20:.0f} MiB and 3 %; {result.load['preemptions']} spot requests were preempted")
    for fault in faults[:20]:
        print(f"FAULT {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
