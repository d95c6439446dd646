"""`tidegate bench` against a real engine process (simulated model) and against servers that misbehave."""

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from serving import EngineUnderTest, engine_process
from tidegate_cli.bench.endpoint import Endpoint
from tidegate_cli.bench.exchange import Exchange
from tidegate_cli.bench.outcome import Ending, Outcome

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).parent.parent.parent
ALIKE = ("--prompt-tokens", "40", "--output-tokens", "6")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def engine() -> Iterator[EngineUnderTest]:
    with engine_process("tide", "--runner", "sim", "--context", "2048", "--slots", "4", "--max-queue", "2") as engine:
        yield engine


def bench(engine_url: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tidegate_cli", "bench", "--url", engine_url, "--model", "tide", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=ROOT)


def test_a_closed_loop_completes_all_requests_with_the_asked_lengths_and_prints_the_documented_keys(
    engine: EngineUnderTest,
):
    result = bench(engine.url, "--requests", "8", "--concurrency", "2", *ALIKE, "-o", "json")
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert (document["requests"], document["failed"], document["rejected"]) == (8, 0, 0)
    assert document["meanOutputTokens"] == 6
    assert document["meanPromptTokens"] == pytest.approx(40, rel=0.15)  # the stand-in's tokens are bytes, words vary
    assert document["outputTokensPerSecond"] > 0
    for key in ("ttftMilliseconds", "itlMilliseconds"):
        assert document[key]["p50"] <= document[key]["p95"] <= document[key]["p99"]
    assert document["maxGapMilliseconds"] >= document["itlMilliseconds"]["p99"]
    assert document["goodput"] <= document["requestsPerSecond"]


def test_more_than_the_queue_takes_is_counted_as_rejected_not_failed(engine: EngineUnderTest):
    lengths = ("--prompt-tokens", "40", "--output-tokens", "40")
    result = bench(engine.url, "--requests", "24", "--rate", "1000", *lengths, "-o", "json")
    document = json.loads(result.stdout)
    assert result.returncode == 0, document["faults"]
    assert document["failed"] == 0
    assert document["rejected"] > 0
    assert document["completed"] + document["rejected"] == 24
    assert document["faults"][0]["fault"].startswith("503")


def test_a_trace_is_replayed_and_a_report_written(engine: EngineUnderTest, tmp_path: Path):
    trace = tmp_path / "trace.jsonl"
    lines = [{"timestamp": 100 * n, "input_length": 30 + n, "output_length": 4, "hash_ids": [n]} for n in range(5)]
    trace.write_text("\n".join(map(json.dumps, lines)))
    report = tmp_path / "report.html"
    result = bench(engine.url, "--trace", str(trace), "--report", str(report))
    assert result.returncode == 0, result.stderr
    assert "5 completed" in result.stdout
    page = report.read_text()
    assert page.count("<svg") == 3
    assert "5 requests of trace.jsonl (open loop)" in page


@pytest.mark.parametrize(
    ("options", "code", "what"),
    [
        (("--requests", "1", "--concurrency", "1"), 2, "--prompt-tokens, --output-tokens"),
        (("--trace", "pyproject.toml"), 2, "pyproject.toml, line 1"),
        (("--requests", "0"), 2, "0 is not at least 1"),
        (("--requests", "1", "--concurrency", "1", *ALIKE, "--api-key-file", "none"), 2, "none cannot be read"),
    ],
)
def test_bad_arguments_are_named_and_nothing_is_sent(options: tuple[str, ...], code: int, what: str):
    result = bench("http://127.0.0.1:9", *options)
    assert (result.returncode, result.stdout) == (code, "")
    assert what in result.stderr


def test_a_server_that_is_not_there_or_does_not_know_the_model_is_said_in_one_line(engine: EngineUnderTest):
    nobody = bench("http://127.0.0.1:9", "--requests", "1", "--concurrency", "1", *ALIKE)
    assert nobody.returncode == 3
    assert "does not answer a short request" in nobody.stderr
    other = bench(engine.url, "--model", "other", "--requests", "1", "--concurrency", "1", *ALIKE)
    assert other.returncode == 3
    assert "'other' is not served here" in other.stderr


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/v1/completions", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
    finally:
        await runner.cleanup()


async def outcome_of(events: list[bytes], *, breaks_off: bool = False) -> Outcome:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for event in events:
            await response.write(event)
        if breaks_off:
            request.transport.abort()
        return response

    async with serving(handler) as url, aiohttp.ClientSession() as session:
        ticks = iter(range(1000))
        return await Exchange(session, Endpoint(url, "m"), lambda: float(next(ticks))).ask("hello", 4)


TEXT = b'data: {"choices": [{"text": "a", "finish_reason": null}]}\n\n'
END = b'data: {"choices": [{"text": "", "finish_reason": "length"}]}\n\n'
DONE = b"data: [DONE]\n\n"


async def test_a_whole_stream_is_timed_piece_by_piece():
    outcome = await outcome_of([b": ping\n\n", TEXT, TEXT, END, DONE])
    assert outcome.ending is Ending.COMPLETED
    assert outcome.event_seconds == (1.0, 2.0)
    assert (outcome.ttft_seconds, outcome.num_output_tokens) == (1.0, 2)


@pytest.mark.parametrize(
    ("events", "breaks_off", "what"),
    [
        ([TEXT, DONE], False, "without a finish reason"),
        ([TEXT, END], False, "without [DONE]"),
        ([TEXT, b'data: {"error": {"message": "out of luck"}}\n\n', DONE], False, "out of luck"),
        ([TEXT, b"data: {broken\n\n"], False, "JSONDecodeError"),
        ([TEXT], True, "Error"),
    ],
)
async def test_an_accepted_stream_that_does_not_end_well_has_failed(events: list[bytes], breaks_off: bool, what: str):
    outcome = await outcome_of(events, breaks_off=breaks_off)
    assert outcome.ending is Ending.FAILED
    assert what in outcome.fault
    assert outcome.event_seconds == (1.0,)
