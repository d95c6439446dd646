"""What an engine takes while it loads stays below what sizing says it may take."""

from pathlib import Path

import pytest

from real_model import gemma_gguf
from serving import START_SECONDS, EngineUnderTest, engine_process
from tidegate_checkpoint.shape import read_shape
from tidegate_core.sizing import Demand, Target, plan_fit
from tidegate_core.storage import Quantization, storage_of
from tidegate_engine.process.process_memory import private_bytes
from waiting import eventually

MEMORY_BYTES = 2 * 2**30


def peak_until_ready(engine: EngineUnderTest) -> int:
    """The most private memory of the process, sampled: the kernel's own maximum counts files too."""
    status = Path(f"/proc/{engine.process.pid}/status")
    samples = []

    def is_ready() -> bool:
        samples.append(private_bytes(status.read_text()))
        return any(event["event"] == "ready" for event in engine.events)

    eventually(is_ready, timeout_seconds=START_SECONDS)
    return max(samples)


@pytest.mark.parametrize("quantization", [None, Quantization.INT8])
def test_the_peak_while_loading_a_real_model_is_within_its_floor(quantization: Quantization | None):
    shape = read_shape(gemma_gguf())
    fit = plan_fit(shape, Target("cpu", MEMORY_BYTES), Demand(), storage_of(shape, quantization=quantization))
    flags = ["--context", "512", "--kv-memory", "32Mi"] + (["--quantization", quantization] if quantization else [])
    with engine_process(str(gemma_gguf()), *flags, is_ready=False) as engine:
        peak = peak_until_ready(engine)
        resident = engine.event("ready")["residentBytes"]
    print(f"\npeak {peak / 2**20:.0f} MiB, planned at most {fit.loading_floor_bytes / 2**20:.0f} MiB")
    assert resident - 2**25 <= peak <= fit.loading_floor_bytes
