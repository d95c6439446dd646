"""One soak: an engine process under mixed load for a while, then the questions that matter.

`make soak` runs it for half an hour, the tests for seconds. Nobody accepted is lost, no invariant breaks in any step,
memory is flat, and when the last client has gone not one block is held.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from serving import EngineUnderTest, engine_process
from soak.clients import MODEL, Clients, Judgement
from soak.memory import GROWTH_BYTES, growth_bytes, is_flat, private_bytes
from soak.model import CONTEXT, write_model
from waiting import eventually_async

NUM_CLIENTS = 20
SAMPLE_SECONDS = 5.0
ENGINE = (
    "--deterministic", f"--served-name={MODEL}", "--threads=1",
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
    with tempfile.TemporaryDirectory() as folder, checked_engine(Path(folder)) as engine:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            clients = Clients(session, engine.url, result.judgement, seed)
            end = time.monotonic() + seconds
            async with asyncio.TaskGroup() as group:
                group.create_task(_sample(engine, result, end))
                for _ in range(NUM_CLIENTS):
                    group.create_task(_keep_asking(engine, clients, end))
            result.load = await _settled(session, engine.admin_url)
        engine.terminate()
        result.exit_code = await asyncio.to_thread(engine.wait, 60)
    return result


def checked_engine(folder: Path) -> AbstractContextManager[EngineUnderTest]:
    return engine_process(str(write_model(folder)), *ENGINE, program=(str(Path(__file__).parent / "engine.py"),))


async def _keep_asking(engine: EngineUnderTest, clients: Clients, end: float) -> None:
    while time.monotonic() < end:
        await clients.ask()
        if (code := engine.process.poll()) is not None:
            raise RuntimeError(f"the engine ended with {code} in the middle of the load:\n{engine.output()}")


async def _sample(engine: EngineUnderTest, result: Soak, end: float) -> None:
    while time.monotonic() < end and engine.process.poll() is None:
        result.samples.append(private_bytes(engine.process.pid))
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
