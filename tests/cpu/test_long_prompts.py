"""A prompt of megabytes, through a real tokenizer over the real app: probes are answered while it is being encoded."""

import asyncio

import httpx
import pytest

from in_process import MODEL, running_app
from real_model import gemma_gguf
from tidegate_engine.server.admin import Phase, ProcessState, create_admin_app
from tidegate_engine.text.tokenizer import load_tokenizer

pytestmark = pytest.mark.anyio

SENTENCE = "The quick brown fox jumps over the lazy dog. "
PROMPT = SENTENCE * (4 * 2**20 // len(SENTENCE))
MIN_PROBES = 20
PAUSE_SECONDS = 0.02


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_probes_are_answered_all_the_time_that_a_prompt_of_megabytes_is_tokenized():
    async with running_app(codec=load_tokenizer(gemma_gguf()), context=2**20) as served:
        transport = httpx.ASGITransport(create_admin_app(ProcessState(Phase.SERVING, served.engine), ()))
        async with httpx.AsyncClient(transport=transport, base_url="http://admin") as admin:
            tokenizing = asyncio.create_task(served.client.post("/tokenize", json={"model": MODEL, "prompt": PROMPT}))
            num_probes = 0
            while not tokenizing.done():
                assert (await admin.get("/livez")).status_code == 200
                num_probes += 1
                await asyncio.wait([tokenizing], timeout=PAUSE_SECONDS)
        answer = (await tokenizing).json()
    assert "outside the vocabulary" in answer["error"]["message"], "it was tokenized; the simulation knows 256 tokens"
    assert num_probes >= MIN_PROBES
