"""Asking engines for their load: one that hangs or talks nonsense costs itself and nobody else."""

import asyncio
import random
import socket
from contextlib import ExitStack
from dataclasses import replace

import aiohttp
import pytest

from fake_engines import FakeEngine, FakeEngines
from pools import IDLE, pod
from tidegate_core.telemetry import ADMIN_PORT
from tidegate_operator.world.observed import Pod
from tidegate_operator.world.scrape import AdminPorts, Answers

TIMEOUT_SECONDS = 0.5


def local_address() -> str:
    """All of 127/8 is local; a random one is nobody's."""
    return f"127.{random.randint(2, 254)}.{random.randint(2, 254)}.{random.randint(2, 254)}"


def pod_of(name: str, engine: FakeEngine) -> Pod:
    return pod(name, ip=engine.ip)


async def asked(*pods: Pod) -> Answers:
    async with aiohttp.ClientSession() as session:
        return await AdminPorts(session, tokens=None, timeout_seconds=TIMEOUT_SECONDS).loads(pods)


async def scraped(*pods: Pod) -> tuple[set[str], float]:
    """Names of those that answered, and how long all of it took."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    answers = await asked(*pods)
    return set(answers.loads), loop.time() - started


def test_engines_that_hang_cost_one_timeout_together_and_the_others_are_heard(engines: FakeEngines) -> None:
    good = [pod_of(f"good-{number}", engines.start(f"good-{number}")) for number in range(3)]
    hung = [pod(f"hung-{number}", ip=local_address()) for number in range(3)]
    with ExitStack() as sockets:
        for each in hung:  # connections are taken by the kernel, and nobody reads them
            sockets.enter_context(socket.create_server((str(each.ip), ADMIN_PORT)))
        names, seconds = asyncio.run(scraped(*hung, *good))
    assert names == {"good-0", "good-1", "good-2"}
    assert seconds < 2 * TIMEOUT_SECONDS


def test_an_engine_that_fails_is_a_missing_sample_and_no_zero(engines: FakeEngines) -> None:
    good, failing = engines.start("good"), engines.start("failing")
    failing.is_answering = False
    names, _ = asyncio.run(scraped(pod_of("good", good), pod_of("failing", failing), pod("nobody", ip=local_address())))
    assert names == {"good"}


def test_what_an_engine_answers_instead_of_its_load_is_kept_in_the_same_words_each_time(engines: FakeEngines) -> None:
    failing, liar, talker = (engines.start(name) for name in ("failing", "liar", "talker"))
    failing.is_answering = False
    liar.body = "{}"
    talker.body = " " * 10_000_000
    pods = [pod_of("failing", failing), pod_of("liar", liar), pod_of("talker", talker)]
    pods += [pod("nobody", ip=local_address()), pod("hung", ip=local_address())]
    with socket.create_server((str(pods[-1].ip), ADMIN_PORT)):
        first, second = asyncio.run(asked(*pods)), asyncio.run(asked(*pods))
    assert first.failures == {
        "failing": "GET /load: HTTP 500",
        "liar": "GET /load: the body is not a load report",
        "talker": "GET /load: the body is cut off or too long",
        "nobody": "GET /load: cannot connect: Connection refused",
        "hung": "GET /load: no answer within 0.5 s",
    }
    assert second == first


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


def test_an_engine_that_never_stops_talking_is_a_missing_sample(engines: FakeEngines) -> None:
    talker, good = engines.start("talker"), engines.start("good")
    talker.body = IDLE.model_dump_json(by_alias=True) + " " * 10_000_000
    names, _ = asyncio.run(scraped(pod_of("talker", talker), pod_of("good", good)))
    assert names == {"good"}


@pytest.mark.parametrize(
    ("truth", "lie"),
    [
        ('"etaSeconds":0.0', '"etaSeconds":NaN'),
        ('"etaSeconds":0.0', '"etaSeconds":Infinity'),
        ('"etaSeconds":0.0', '"etaSeconds":-1'),
        ('"running":0', '"running":-5'),
        ('"running":0', f'"running":1{"0" * 400}'),
        ('"kvBlocksTotal":500', f'"kvBlocksTotal":1{"0" * 30}'),
        ('"baseSeconds":0.0', '"baseSeconds":NaN'),
    ],
)
def test_a_report_with_a_number_that_cannot_be_is_a_missing_sample(engines: FakeEngines, truth: str, lie: str) -> None:
    liar = engines.start("liar")
    report = IDLE.model_dump_json(by_alias=True)
    assert truth in report
    liar.body = report.replace(truth, lie)
    assert asyncio.run(scraped(pod_of("liar", liar)))[0] == set()
