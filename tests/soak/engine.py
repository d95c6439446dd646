"""The engine under soak: an ordinary engine process whose every step is checked before it runs.

`python tests/soak/engine.py MODEL [arguments of tidegate serve]`. A broken invariant ends the process with code 70 and
says which: no request is to hide it.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import replace

from tidegate_core.launch import EngineLaunch
from tidegate_engine.process.loading import EngineParts
from tidegate_engine.request import ServiceClass
from tidegate_engine.runner import RowResult, Runner, StepBatch
from tidegate_engine.serve import EngineProcess

BROKEN = 70


class CheckedRunner:
    """A runner that looks at the engine first. Everything but run() is the real one's."""

    def __init__(self, runner: Runner, process: EngineProcess) -> None:
        self._runner = runner
        self._process = process

    def __getattr__(self, name: str) -> object:
        return getattr(self._runner, name)

    def run(self, batch: StepBatch) -> tuple[RowResult, ...]:
        try:
            self._check(batch)
        except AssertionError as error:
            print(f"broken invariant: {error}", file=sys.stderr, flush=True)
            os._exit(BROKEN)
        return self._runner.run(batch)

    def _check(self, batch: StepBatch) -> None:
        loop = self._process.state.engine
        engine = loop._engine
        running = engine.scheduler.running
        engine.pool.check(running)
        assert len(running) <= engine.scheduler.slots, f"{len(running)} requests run in {engine.scheduler.slots} slots"
        rows = [row.request_id for row in batch.rows]
        assert len(set(rows)) == len(rows), f"a request is twice in a step: {rows}"
        for request in running:
            is_spot = request.terms.service_class is ServiceClass.SPOT
            assert is_spot or not request.num_preemptions, f"guaranteed {request.request_id} was preempted"


class CheckedProcess(EngineProcess):
    async def _load(self, ports: Mapping[str, int]) -> EngineParts:
        parts = await super()._load(ports)
        return replace(parts, runner=CheckedRunner(parts.runner, self))


if __name__ == "__main__":
    logging.basicConfig(level=logging.CRITICAL)  # faults are injected by the hundred
    asyncio.run(CheckedProcess(EngineLaunch.from_args(sys.argv[1:])).run())
