"""What clients hear of the queue: how long an accepted request will wait, and when a refused one may come back."""

import asyncio

import httpx
import pytest

from in_process import MODEL, ServedApp, running_app
from tidegate_engine.counters import Refusal
from tidegate_engine.server.callers import Access
from tidegate_engine.server.key_file import KeyFile
from tidegate_engine.server.keys import key_line

pytestmark = pytest.mark.anyio

COMPLETIONS = "/v1/completions"
TIMEOUT_SECONDS = 20  # a request that is not refused would wait behind the closed gate


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def access(tmp_path) -> Access:
    path = tmp_path / "keys"
    path.write_text("".join(f"{key_line(tenant, tenant)}\n" for tenant in ("greedy", "modest")))
    return Access(KeyFile(path))


def completion(**fields) -> dict:
    return {"model": MODEL, "prompt": "x", "max_tokens": 3, **fields}


async def as_tenant(served: ServedApp, tenant: str) -> httpx.Response:
    return await served.client.post(COMPLETIONS, json=completion(), headers={"Authorization": f"Bearer {tenant}"})


@pytest.mark.parametrize("stream", [False, True])
async def test_an_accepted_request_is_told_how_long_it_was_expected_to_wait(stream):
    async with running_app(slots=1, step_seconds=0.01) as served:
        at_once = await served.client.post(COMPLETIONS, json=completion(stream=stream))
        with served.gate.closed():
            running = served.background(COMPLETIONS, completion(max_tokens=20, ignore_eos=True))
            await served.eventually(lambda: served.load().running == 1)
            waiting = served.background(COMPLETIONS, completion(stream=stream))
            await served.eventually(lambda: served.load().waiting == 1)
        assert (await running).status_code == 200
        waited = await waiting
    assert float(at_once.headers["x-queue-eta"]) == 0
    assert float(waited.headers["x-queue-eta"]) > 0


async def test_in_a_full_queue_the_tenant_with_more_than_its_share_gets_a_429_and_another_is_still_let_in(access):
    async with running_app(slots=1, max_queue=3, access=access) as served:
        with served.gate.closed():
            accepted = [asyncio.create_task(as_tenant(served, "greedy"))]
            await served.eventually(lambda: served.load().running == 1)
            for number, tenant in enumerate(("greedy", "greedy", "modest"), 1):
                accepted.append(asyncio.create_task(as_tenant(served, tenant)))
                await served.eventually(lambda number=number: served.load().waiting == number)
            greedy = await asyncio.wait_for(as_tenant(served, "greedy"), TIMEOUT_SECONDS)
            accepted.append(asyncio.create_task(as_tenant(served, "modest")))
            await served.eventually(lambda: served.load().waiting == 4)
        assert {response.status_code for response in await asyncio.gather(*accepted)} == {200}
        assert served.engine.counters.refusals[Refusal.TENANT_SHARE] == 1
    assert (greedy.status_code, greedy.json()["error"]["code"]) == (429, "tenant_over_share")
    assert int(greedy.headers["retry-after"]) >= 1


async def test_prompt_tokens_that_wait_are_bounded_too():
    async with running_app(slots=1, max_queue_tokens=10) as served:
        with served.gate.closed():
            accepted = [served.background(COMPLETIONS, completion())]
            await served.eventually(lambda: served.load().running == 1)
            accepted.append(served.background(COMPLETIONS, completion(prompt="x" * 8)))
            await served.eventually(lambda: served.load().waiting == 1)
            asking = served.client.post(COMPLETIONS, json=completion(prompt="x" * 8))
            refused = await asyncio.wait_for(asking, TIMEOUT_SECONDS)
        assert {response.status_code for response in await asyncio.gather(*accepted)} == {200}
        assert served.engine.counters.refusals[Refusal.QUEUE_TOKENS] == 1
    assert refused.status_code == 503
    assert "prompt tokens are waiting" in refused.json()["error"]["message"]
