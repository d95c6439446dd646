"""Prometheus metrics of one engine, asked for when scraped: labelled, under our names and under vLLM's.

Everything hangs on a registry that is passed in; nothing is registered globally.
https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Protocol

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client import Metric as Family
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response

from tidegate_core.telemetry import (
    VLLM_ALIASES,
    VLLM_CACHE_CONFIG,
    VLLM_KV_USAGE,
    VLLM_WAITING_BY_REASON,
    LoadReport,
    StartReport,
)
from tidegate_engine.counters import Counters
from tidegate_engine.server.callers import KeySource
from tidegate_engine.server.engine_metrics import Snapshot, families, gauge


class CountingEngine(Protocol):
    """What the collector asks."""

    @property
    def counters(self) -> Counters: ...

    def load(self) -> LoadReport: ...

    @property
    def num_cached_blocks(self) -> int: ...

    @property
    def num_reserved_blocks(self) -> int: ...

    def tenant_shares(self) -> Mapping[str, float]: ...


class EngineCollector(Collector):
    """Asks the engine when scraped; every family goes out labelled, and again under its vLLM name if it has one."""

    def __init__(
        self, engine: CountingEngine, model_name: str, keys: KeySource | None, start: StartReport | None
    ) -> None:
        self._engine = engine
        self._labels = {"model_name": model_name}
        self._vllm_labels = {"model_name": model_name, "engine": "0"}
        self._keys = keys
        self._start = start

    def collect(self) -> Iterator[Family]:
        engine = self._engine
        load = engine.load()
        seen = Snapshot(
            load=load,
            counters=engine.counters,
            num_cached_blocks=engine.num_cached_blocks,
            num_reserved_blocks=engine.num_reserved_blocks,
            tenant_shares=engine.tenant_shares(),
            keys=self._keys,
            start=self._start,
        )
        for family in families(seen):
            yield _labelled(family, family.name, self._labels)
            if (alias := VLLM_ALIASES.get(family.name)) is not None:
                yield _labelled(family, alias, self._vllm_labels)
        for family in _vllm_only(load):
            yield _labelled(family, family.name, self._vllm_labels)


def _vllm_only(load: LoadReport) -> Iterator[Family]:
    share = load.kv_blocks_used / load.kv_blocks_total if load.kv_blocks_total else 0.0
    yield gauge(VLLM_KV_USAGE, "Share of KV blocks that live requests hold, 0 to 1.", share)
    waiting = Family(VLLM_WAITING_BY_REASON, "Requests that wait for admission; nothing else defers one.", "gauge")
    for reason, number in (("capacity", load.waiting), ("deferred", 0)):
        waiting.add_sample(VLLM_WAITING_BY_REASON, {"reason": reason}, number)
    yield waiting
    config = {"block_size": str(load.sizing.block_size), "num_gpu_blocks": str(load.kv_blocks_total)}
    info = Family(VLLM_CACHE_CONFIG, "KV cache as allocated.", "gauge")
    info.add_sample(VLLM_CACHE_CONFIG, config, 1)
    yield info


def build_registry(
    engine: CountingEngine, model_name: str, keys: KeySource | None = None, start: StartReport | None = None
) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(EngineCollector(engine, model_name, keys, start))
    ProcessCollector(registry=registry)
    return registry


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
