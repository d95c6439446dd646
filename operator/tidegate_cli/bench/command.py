"""`tidegate bench`: the options, one run, the figures."""

import argparse
import asyncio
import math
import sys
import time
from pathlib import Path

import aiohttp

from tidegate_cli.bench.endpoint import Api, Endpoint
from tidegate_cli.bench.errors import BadBench, NoServer
from tidegate_cli.bench.exchange import Exchange
from tidegate_cli.bench.load import Load
from tidegate_cli.bench.outcome import Ending, Outcome
from tidegate_cli.bench.probe import measure_lengths
from tidegate_cli.bench.progress import Progress
from tidegate_cli.bench.summary import Objectives, summarise, to_json, to_table
from tidegate_cli.bench.trace import read_trace
from tidegate_cli.bench.workload import Workload, closed_loop, poisson, replay

SOME_FAILED, BAD_ARGUMENTS, NO_SERVER = 1, 2, 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where, what load, which objectives, what comes out."""
    parser.add_argument("--url", required=True, help="base URL of an OpenAI-compatible server")
    parser.add_argument("--model", required=True, help="model name, as the server calls it")
    load = parser.add_argument_group("load", "a trace at its own pace, or requests that are all alike")
    load.add_argument("--trace", type=Path, metavar="FILE", help="Azure CSV or Mooncake JSONL, plain or .gz: open loop")
    load.add_argument("--speedup", type=_positive, default=1.0, metavar="X", help="replay the trace X times as fast")
    load.add_argument("--max-context", type=_count, metavar="N", help="leave out a trace's requests longer than this")
    load.add_argument("--requests", type=_count, metavar="N", help="how many; of a trace, its first ones")
    load.add_argument("--concurrency", type=_count, metavar="C", help="so many clients, one request each: closed loop")
    load.add_argument("--rate", type=_positive, metavar="R", help="R requests a second at random moments: open loop")
    load.add_argument("--prompt-tokens", type=_count, metavar="I", help="tokens of each prompt")
    load.add_argument("--output-tokens", type=_count, metavar="O", help="tokens of each answer")
    load.add_argument("--seed", type=int, default=0, help="of prompts and moments; the same seed sends the same")
    ask = parser.add_argument_group("requests")
    ask.add_argument("--api", type=Api, choices=list(Api), default=Api.COMPLETIONS, help="which API is asked")
    ask.add_argument("--api-key-file", type=Path, metavar="FILE", help="file with the API key")
    ask.add_argument("--respect-eos", action="store_true", help="answers may end early (ignore_eos is not sent)")
    ask.add_argument("--timeout-seconds", type=_positive, default=600.0, metavar="S", help="of one request")
    goal = parser.add_argument_group("objectives", "a request that meets both counts for goodput")
    goal.add_argument("--ttft-ms", type=_positive, default=2000.0, metavar="MS", help="time to first token")
    goal.add_argument("--itl-ms", type=_positive, default=100.0, metavar="MS", help="mean time between tokens")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", help="what is printed")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write an HTML report with plots")


def run(arguments: argparse.Namespace) -> int:
    """0: every request was completed or rejected with a reason; 1: some failed; 2: bad arguments; 3: no server."""
    try:
        workload = workload_of(arguments)
        endpoint = _endpoint(arguments)
        objectives = Objectives(arguments.ttft_ms, arguments.itl_ms)
        outcomes = asyncio.run(_measure(endpoint, workload, arguments.seed, arguments.timeout_seconds))
        summary = summarise(outcomes, objectives)
        if arguments.report:
            from tidegate_cli.bench.report import html_report  # plots take a second to import

            _write(arguments.report, html_report(endpoint, workload, outcomes, summary, objectives))
    except BadBench as error:
        print(f"tidegate bench: {error}", file=sys.stderr)
        return BAD_ARGUMENTS
    except NoServer as error:
        print(f"tidegate bench: {arguments.url}: {error}", file=sys.stderr)
        return NO_SERVER
    print(to_json(summary) if arguments.output == "json" else to_table(summary, objectives))
    return SOME_FAILED if any(outcome.ending is Ending.FAILED for outcome in outcomes) else 0


def workload_of(arguments: argparse.Namespace) -> Workload:
    """Raises BadBench for options that do not go together, or a file that is no trace."""
    alike = {"--concurrency": arguments.concurrency, "--rate": arguments.rate,
             "--prompt-tokens": arguments.prompt_tokens, "--output-tokens": arguments.output_tokens}  # fmt: skip
    if arguments.trace:
        if given := [name for name, value in alike.items() if value is not None]:
            raise BadBench(f"a trace says itself when and how long its requests are: leave out {', '.join(given)}")
        trace = read_trace(arguments.trace)[: arguments.requests]
        workload = replay(
            trace, name=arguments.trace.name, speedup=arguments.speedup, max_context=arguments.max_context
        )
        if not workload.requests:
            raise BadBench(f"no request of {arguments.trace} has at most {arguments.max_context} tokens")
        return workload
    if (arguments.concurrency is None) == (arguments.rate is None):
        raise BadBench("say how requests come: --concurrency C or --rate R with --requests, or --trace FILE")
    sizes = {name: alike[name] for name in ("--prompt-tokens", "--output-tokens")}
    if missing := [name for name, value in {"--requests": arguments.requests, **sizes}.items() if value is None]:
        raise BadBench(f"requests that are all alike need {', '.join(missing)}")
    num_prompt_tokens, num_output_tokens = sizes.values()
    if arguments.rate is not None:
        return poisson(arguments.requests, arguments.rate, num_prompt_tokens, num_output_tokens, arguments.seed)
    return closed_loop(arguments.requests, arguments.concurrency, num_prompt_tokens, num_output_tokens)


async def _measure(endpoint: Endpoint, workload: Workload, seed: int, timeout_seconds: float) -> tuple[Outcome, ...]:
    timeout = aiohttp.ClientTimeout(total=timeout_seconds)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        lengths = await measure_lengths(Exchange(session, endpoint, time.perf_counter))
        began = time.perf_counter()

        def clock() -> float:
            return time.perf_counter() - began

        with Progress(len(workload.requests)) as progress:
            exchange = Exchange(session, endpoint, clock)
            load = Load(exchange, lengths, seed=seed, clock=clock, report=progress.saw)
            return await load.run(workload)


def _endpoint(arguments: argparse.Namespace) -> Endpoint:
    if not arguments.url.startswith(("http://", "https://")):
        raise BadBench(f"--url {arguments.url}: a URL begins with http:// or https://")
    key = None
    if arguments.api_key_file:
        try:
            key = arguments.api_key_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise BadBench(f"--api-key-file {arguments.api_key_file} cannot be read: {error}") from error
    return Endpoint(arguments.url, arguments.model, arguments.api, key, not arguments.respect_eos)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadBench(f"--report {path} cannot be written: {error.strerror}") from error


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return value


def _positive(text: str) -> float:
    value = float(text)
    if not (value > 0 and math.isfinite(value)):
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return value
