"""Asking engines for their load: one that hangs or talks nonsense costs itself and nobody else."""

import asyncio
from dataclasses import replace

import aiohttp

from fake_engines import FakeEngine, FakeEngines
from pools import pod
from tidegate_operator.observed import Pod
from tidegate_operator.scrape import AdminPorts

TIMEOUT_SECONDS = 0.5


def pod_of(name: str, engine: FakeEngine) -> Pod:
    return pod(name, ip=engine.ip)


async def scraped(*pods: Pod) -> tuple[set[str], float]:
    """Names of those that answered, and how long all of it took."""
    loop = asyncio.get_running_loop()
    async with aiohttp.ClientSession() as session:
        started = loop.time()
        loads = await AdminPorts(session, token=None, timeout_seconds=TIMEOUT_SECONDS).loads(pods)
        return set(loads), loop.time() - started


def test_engines_that_hang_cost_one_timeout_together_and_the_others_are_heard(engines: FakeEngines) -> None:
    async def scenario() -> None:
        async def hang(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
            await reader.read()

        good = [pod_of(f"good-{number}", engines.start(f"good-{number}")) for number in range(3)]
        hung = [replace(each, name=f"hung-{each.name}", ip=f"127.9.9.{index}") for index, each in enumerate(good, 1)]
        servers = [await asyncio.start_server(hang, each.ip, 8001) for each in hung]
        names, seconds = await scraped(*hung, *good)
        for server in servers:
            server.close()
        assert names == {"good-0", "good-1", "good-2"}
        assert seconds < 2 * TIMEOUT_SECONDS

    asyncio.run(scenario())


def test_an_engine_that_fails_is_a_missing_sample_and_no_zero(engines: FakeEngines) -> None:
    good, failing = engines.start("good"), engines.start("failing")
    failing.is_answering = False
    names, _ = asyncio.run(scraped(pod_of("good", good), pod_of("failing", failing), pod("nobody", ip="127.9.9.9")))
    assert names == {"good"}


def test_pods_that_do_not_run_or_leave_are_not_asked(engines: FakeEngines) -> None:
    engine = engines.start("any")
    pods = (
        pod_of("serving", engine),
        replace(pod_of("starting", engine), is_running=False),
        replace(pod_of("leaving", engine), is_terminating=True),
        pod("no-address", ip=None),
    )
    names, _ = asyncio.run(scraped(*pods))
    assert names == {"serving"}
