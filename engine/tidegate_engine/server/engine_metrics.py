"""What one engine's counters and state are called in Prometheus, and what each name means: one table of families.

metrics.py labels them and repeats them under vLLM's names; docs/metrics.md lists them, held to this file by a test.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from prometheus_client import Metric as Family
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from tidegate_core.telemetry import LoadReport, Metric, StartReport
from tidegate_engine.counters import Counters
from tidegate_engine.server.callers import KeySource
from tidegate_engine.tally import Tally

MAX_TENANTS = 32  # label values cost memory in every scraper
OTHER_TENANTS = "(other)"


class Snapshot(NamedTuple):
    """One scrape's facts."""

    load: LoadReport
    counters: Counters
    num_cached_blocks: int
    num_reserved_blocks: int
    tenant_shares: Mapping[str, float]
    keys: KeySource | None
    start: StartReport | None


def families(seen: Snapshot) -> Iterator[Family]:
    yield from _state(seen)
    yield from _counts(seen.counters)
    yield from _step(seen)
    yield from _requests(seen.counters)
    if seen.start is not None:
        phases = (("load", seen.start.load_seconds), ("warm_up", seen.start.warm_up_seconds))
        starts = GaugeMetricFamily(Metric.START_SECONDS, "Time this process took until it served.", labels=["phase"])
        for phase, seconds in phases:
            starts.add_metric([phase], seconds)
        yield starts
    if seen.keys is not None:
        yield gauge(Metric.API_KEYS, "API keys in force.", len(seen.keys.keys.callers))
        help_text = "1 while the newest key file cannot be used and the keys before it stay in force."
        yield gauge(Metric.API_KEYS_OUTDATED, help_text, seen.keys.fault is not None)


def _state(seen: Snapshot) -> Iterator[Family]:
    load = seen.load
    yield gauge(Metric.REQUESTS_RUNNING, "Requests that hold KV blocks.", load.running)
    yield gauge(Metric.REQUESTS_WAITING, "Requests that wait for admission.", load.waiting)
    yield gauge(Metric.PREDICTED_WAIT_SECONDS, "Predicted wait of a p90 request that arrives now.", load.eta_seconds)
    yield gauge(Metric.DRAINING, "1 while no new requests are taken.", load.draining)
    yield gauge(Metric.KV_BLOCKS_TOTAL, "KV blocks of the pool.", load.kv_blocks_total)
    yield gauge(Metric.KV_BLOCKS_USED, "KV blocks held by live requests.", load.kv_blocks_used)
    help_text = "KV blocks that nobody holds and that a later prompt may find."
    yield gauge(Metric.KV_BLOCKS_CACHED, help_text, seen.num_cached_blocks)
    help_text = "KV blocks that running requests hold at most, each counted at its own end."
    yield gauge(Metric.KV_BLOCKS_RESERVED, help_text, seen.num_reserved_blocks)
    help_text = "A tenant's part of all tokens asked for by requests that wait or run."
    shares = GaugeMetricFamily(Metric.TENANT_SHARE, help_text, labels=["tenant"])
    for tenant, share in largest(seen.tenant_shares):
        shares.add_metric([tenant], share)
    yield shares


def _counts(counters: Counters) -> Iterator[Family]:
    yield counter(Metric.ARRIVALS, "Requests seen, capacity refusals included.", counters.arrivals)
    yield counter(Metric.REJECTS, "Requests refused for lack of capacity.", counters.rejects)
    yield counters_by("reason", Metric.REFUSALS, "Requests not accepted.", counters.refusals.items())
    yield counter(Metric.COMPLETIONS, "Requests that ran to their end.", counters.completions)
    yield counters_by("finished_reason", Metric.FINISHED, "Accepted requests that ended.", counters.finished.items())
    yield counter(Metric.PREEMPTIONS, "Times a running request lost its KV.", counters.preemptions)
    yield counter(Metric.PROMPT_TOKENS, "Prompt tokens of requests that got their first token.", counters.prompt_tokens)
    yield counter(Metric.GENERATION_TOKENS, "Tokens generated.", counters.generation_tokens)
    wasted = (
        ("recomputed", counters.recomputed_tokens),
        ("after_stop", counters.tokens_after_stop),
        ("after_disconnect", counters.tokens_after_disconnect),
    )
    yield counters_by("reason", Metric.WASTED_TOKENS, "Tokens computed that nobody got.", wasted)
    help_text = "Prompt tokens looked for in the prefix cache."
    yield counter(Metric.PREFIX_QUERIED_TOKENS, help_text, counters.prefix_queried_tokens)
    help_text = "Prompt tokens found in the prefix cache."
    yield counter(Metric.PREFIX_HIT_TOKENS, help_text, counters.prefix_hit_tokens)


def _step(seen: Snapshot) -> Iterator[Family]:
    fit = seen.load.step_fit
    yield gauge(Metric.STEP_BASE_SECONDS, "Learned step time: what every step takes.", fit.base_seconds)
    help_text = "Learned step time: for each token computed."
    yield gauge(Metric.STEP_SECONDS_PER_TOKEN, help_text, fit.seconds_per_token)
    help_text = "Learned step time: for each KV token attended to."
    yield gauge(Metric.STEP_SECONDS_PER_CONTEXT_TOKEN, help_text, fit.seconds_per_context_token)
    yield histogram(Metric.STEP_TOKENS, "Tokens computed in a step.", seen.counters.step_tokens)


def _requests(counters: Counters) -> Iterator[Family]:
    requests = counters.requests
    yield histogram(Metric.TTFT_SECONDS, "From acceptance to the first token.", requests.ttft_seconds)
    yield histogram(Metric.ITL_SECONDS, "Between tokens of one answer.", requests.itl_seconds)
    yield histogram(Metric.TOKEN_SECONDS, "Mean time between one answer's tokens.", requests.token_seconds)
    yield histogram(Metric.TOTAL_SECONDS, "From acceptance to the end.", requests.total_seconds)
    yield histogram(Metric.QUEUE_SECONDS, "From acceptance to the first step.", requests.queue_seconds)
    yield histogram(Metric.INFERENCE_SECONDS, "From the first step to the end.", requests.inference_seconds)
    yield histogram(Metric.PREFILL_SECONDS, "From the first step to the first token.", requests.prefill_seconds)
    yield histogram(Metric.DECODE_SECONDS, "From the first token to the last.", requests.decode_seconds)
    yield histogram(Metric.REQUEST_PROMPT_TOKENS, "Prompt tokens of a request.", requests.prompt_tokens)
    yield histogram(Metric.REQUEST_OUTPUT_TOKENS, "Tokens generated for a request.", requests.output_tokens)
    yield histogram(Metric.REQUEST_MAX_TOKENS, "Most tokens a request might generate.", requests.max_tokens)
    yield histogram(Metric.REQUEST_CHOICES, "Choices asked for a prompt (`n`).", requests.num_choices)


def largest(shares: Mapping[str, float]) -> Iterable[tuple[str, float]]:
    """The biggest shares; the others as one."""
    ranked = sorted(shares.items(), key=lambda item: (-item[1], item[0]))
    yield from ranked[:MAX_TENANTS]
    if rest := ranked[MAX_TENANTS:]:
        yield OTHER_TENANTS, sum(share for _, share in rest)


def gauge(name: str, help_text: str, value: float) -> Family:
    return GaugeMetricFamily(name, help_text, float(value))


def counter(name: str, help_text: str, value: float) -> Family:
    return CounterMetricFamily(name, help_text, value)


def counters_by(label: str, name: str, help_text: str, values: Iterable[tuple[str, int]]) -> Family:
    family = CounterMetricFamily(name, help_text, labels=[label])
    for key, value in values:
        family.add_metric([str(key)], value)
    return family


def histogram(name: str, help_text: str, tally: Tally) -> Family:
    return HistogramMetricFamily(name, help_text, buckets=tally.cumulative(), sum_value=tally.total)
