"""Prometheus metrics of one engine: its counters, and what clients waited, under our names and under vLLM's.

Everything hangs on a registry that is passed in; nothing is registered globally. Counts come from the engine's load
report, latencies from the streams. https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from collections.abc import Awaitable, Callable, Iterator
from typing import Protocol

from prometheus_client import CollectorRegistry, Histogram, ProcessCollector
from prometheus_client import Metric as Family
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response

from tidegate_core.telemetry import VLLM_ALIASES, VLLM_CACHE_CONFIG, VLLM_KV_USAGE, LoadReport, Metric
from tidegate_engine.counters import Counters

# vLLM's buckets, so that dashboards made for it show ours beside it.
TTFT_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
    640.0, 2560.0,
)  # fmt: skip
ITL_BUCKETS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip


class RequestMetrics:
    """What the front sees of its requests."""

    def __init__(self, model_name: str) -> None:
        self.model_name = model_name
        self.ttft_seconds = Histogram(
            Metric.TTFT_SECONDS, "From acceptance to the first token.", buckets=TTFT_BUCKETS, registry=None
        )
        self.itl_seconds = Histogram(
            Metric.ITL_SECONDS, "Between tokens of one answer.", buckets=ITL_BUCKETS, registry=None
        )

    def families(self) -> Iterator[Family]:
        yield from self.ttft_seconds.collect()
        yield from self.itl_seconds.collect()


class CountingEngine(Protocol):
    """What the collector asks."""

    @property
    def counters(self) -> Counters: ...

    def load(self) -> LoadReport: ...


class EngineCollector(Collector):
    """Asks the engine when scraped; every family goes out labelled, and again under its vLLM name if it has one."""

    def __init__(self, engine: CountingEngine, requests: RequestMetrics) -> None:
        self._engine = engine
        self._requests = requests

    def collect(self) -> Iterator[Family]:
        report = self._engine.load()
        for family in (*_engine_families(report, self._engine.counters), *self._requests.families()):
            yield _labelled(family, family.name, {"model_name": self._requests.model_name})
            if (alias := VLLM_ALIASES.get(family.name)) is not None:
                yield _labelled(family, alias, self._vllm_labels)
        yield from self._vllm_only(report)

    @property
    def _vllm_labels(self) -> dict[str, str]:
        return {"model_name": self._requests.model_name, "engine": "0"}

    def _vllm_only(self, report: LoadReport) -> Iterator[Family]:
        share = report.kv_blocks_used / report.kv_blocks_total if report.kv_blocks_total else 0.0
        yield _labelled(
            _gauge(VLLM_KV_USAGE, "Share of KV blocks in use, 0 to 1.", share), VLLM_KV_USAGE, self._vllm_labels
        )
        config = {"block_size": str(report.sizing.block_size), "num_gpu_blocks": str(report.kv_blocks_total)}
        info = _gauge(VLLM_CACHE_CONFIG, "KV cache as allocated.", 1)
        yield _labelled(info, VLLM_CACHE_CONFIG, {**config, **self._vllm_labels})


def build_registry(engine: CountingEngine, requests: RequestMetrics) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(EngineCollector(engine, requests))
    ProcessCollector(registry=registry)
    return registry


def _engine_families(report: LoadReport, counters: Counters) -> tuple[Family, ...]:
    return (
        _gauge(Metric.REQUESTS_RUNNING, "Requests that hold KV blocks.", report.running),
        _gauge(Metric.REQUESTS_WAITING, "Requests that wait for admission.", report.waiting),
        _gauge(Metric.KV_BLOCKS_USED, "KV blocks held by live requests.", report.kv_blocks_used),
        _gauge(Metric.KV_BLOCKS_TOTAL, "KV blocks of the pool.", report.kv_blocks_total),
        _gauge(Metric.PREDICTED_WAIT_SECONDS, "Predicted wait of a p90 request that arrives now.", report.eta_seconds),
        _counter(Metric.ARRIVALS, "Requests seen, capacity refusals included.", report.arrivals),
        _counter(Metric.REJECTS, "Requests refused for lack of capacity.", report.rejects),
        _counter(Metric.COMPLETIONS, "Requests that ran to their end.", report.completions),
        _counter(Metric.PREEMPTIONS, "Running requests that lost their KV.", report.preemptions),
        _counter(Metric.PROMPT_TOKENS, "Prompt tokens computed.", counters.prompt_tokens),
        _counter(Metric.GENERATION_TOKENS, "Tokens generated.", counters.generation_tokens),
    )


def _gauge(name: str, help_text: str, value: float) -> Family:
    return GaugeMetricFamily(name, help_text, value)


def _counter(name: str, help_text: str, value: float) -> Family:
    return CounterMetricFamily(name, help_text, value)


def _labelled(family: Family, name: str, labels: dict[str, str]) -> Family:
    """The same samples under another family name, with labels added."""
    copy = Family(name, family.documentation, family.type)
    for sample in family.samples:
        copy.samples.append(
            sample._replace(name=name + sample.name.removeprefix(family.name), labels={**sample.labels, **labels})
        )
    return copy


def metrics_response(request: Request, registry: CollectorRegistry) -> Response:
    """The registry in the exposition format the scraper accepts."""
    encode, content_type = choose_encoder(request.headers.get("accept", ""))
    return Response(encode(registry), headers={"content-type": content_type})


def metrics_endpoint(registry: CollectorRegistry) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        return metrics_response(request, registry)

    return endpoint
