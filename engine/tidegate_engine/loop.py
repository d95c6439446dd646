"""The engine's thread and its asyncio side: the one object that servers hold.

loop = EngineLoop(runner=..., sizing=EngineSizing(...), settings=LoopSettings(...))
loop.start()                                   # inside a running event loop
stream = loop.submit(request_id, prompt_token_ids, sampling)
async for chunk in stream: ...
loop.drain(); ...wait for is_idle...; await loop.stop()
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tidegate_core.telemetry import LoadReport
from tidegate_engine.request import SamplingParams
from tidegate_engine.stream import Stream


@dataclass(frozen=True)
class LoopSettings:
    """What the launch contract says about the queue and the objectives; p90 lengths feed predictions."""

    max_queue: int = 64
    max_wait_seconds: float = 30.0
    prompt_tokens: int = 900
    output_tokens: int = 300
    itl_seconds: float = 0.1


class EngineLoop(Protocol):
    """The surface servers may rely on."""

    def start(self) -> None:
        """Starts the engine thread; streams belong to the event loop that is running now."""

    async def stop(self) -> None:
        """Ends the thread after the step in progress; what still runs ends with FinishReason.ABORT. Idempotent."""

    def submit(self, request_id: str, prompt_token_ids: Sequence[int], sampling: SamplingParams) -> Stream:
        """Raises BadRequest, NeverFits, QueueFull, Draining or EngineFailed at once; an accepted request always ends."""

    def load(self) -> LoadReport: ...
    def drain(self) -> None:
        """Refuses new requests from now on; accepted ones, waiting or running, finish."""

    def undrain(self) -> None: ...
    @property
    def is_draining(self) -> bool: ...
    @property
    def is_idle(self) -> bool:
        """Whether every accepted request has ended."""

    def last_step_age_seconds(self) -> float:
        """0 when there is nothing to do, infinite when the engine has failed: /livez compares it with a bound."""
