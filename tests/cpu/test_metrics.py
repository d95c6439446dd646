"""Metrics tell the truth whatever becomes of requests, under our names and vLLM's; docs/metrics.md lists them all."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from in_process import CONTEXT, MODEL, POISON, START, ServedApp, running_app
from tidegate_core.telemetry import VLLM_ALIASES
from tidegate_engine.request import SamplingParams
from tidegate_engine.server.admin import Phase, ProcessState, create_admin_app
from tidegate_engine.server.callers import Access
from tidegate_engine.server.engine_metrics import MAX_TENANTS, OTHER_TENANTS, largest
from tidegate_engine.server.keys import ApiKeys, key_line
from tidegate_engine.server.metrics import build_registry
from tidegate_engine.tally import Tally

pytestmark = pytest.mark.anyio

PAGE = Path(__file__).parents[2] / "docs/metrics.md"
COMPLETIONS = "/v1/completions"
MODEL_LABELS = {"model_name", "engine"}
PROCESS = "process_"  # prometheus_client's own


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@dataclass
class Scrape:
    """One reading of /metrics."""

    text: str

    def __getitem__(self, name: str) -> float:
        """The sum over all samples of this name."""
        return sum(sample.value for family in self.families() for sample in family.samples if sample.name == name)

    def by(self, name: str, label: str) -> dict[str, float]:
        found = (sample for family in self.families() for sample in family.samples if sample.name == name)
        return {sample.labels[label]: sample.value for sample in found}

    def families(self) -> Iterator:
        return text_string_to_metric_families(self.text)


async def scrape(served: ServedApp) -> Scrape:
    return Scrape((await served.client.get("/metrics")).text)


def completion(**fields) -> dict:
    return {"model": MODEL, "prompt": "x", "max_tokens": 3, "ignore_eos": True, **fields}


async def test_every_request_is_counted_where_it_got_to_and_nowhere_else():
    """One finishes, one stops, one fails, one leaves while it waits, one is refused, one could never fit."""
    async with running_app(slots=1, max_queue=1) as served:
        assert (await served.client.post(COMPLETIONS, json=completion(prompt="four"))).status_code == 200
        text = (await served.client.post(COMPLETIONS, json=completion(max_tokens=40))).json()["choices"][0]["text"]
        served.gate.hold_after(steps=30)  # else the engine may come to the end before it is told of the stop
        stopped = await served.client.post(COMPLETIONS, json=completion(max_tokens=40, stop=[text[2:5]]))
        assert stopped.json()["choices"][0]["finish_reason"] == "stop"
        served.gate.release()
        assert (await served.client.post(COMPLETIONS, json=completion(prompt=[POISON]))).status_code == 500
        await served.eventually_idle()
        with served.gate.closed():
            running = served.background(COMPLETIONS, completion())
            await served.eventually(lambda: served.gate.num_held == 1)
            stream = served.engine.submit("leaves", [1], sampling(4))
            assert (await served.client.post(COMPLETIONS, json=completion())).status_code == 503
            stream.cancel()
        assert (await running).status_code == 200
        await served.eventually_idle()
        seen = await scrape(served)
    assert seen.by("tidegate_requests_finished_total", "finished_reason") == {
        "length": 3, "stop": 1, "error": 1, "abort": 1,
    }  # fmt: skip
    assert seen["tidegate_requests_arrived_total"] == 7
    assert seen.by("tidegate_requests_refused_total", "reason")["queue_requests"] == 1
    assert seen["tidegate_requests_rejected_total"] == 1
    assert seen["tidegate_requests_completed_total"] == 4
    assert seen["tidegate_request_total_seconds_count"] == 6, "whatever ended"
    assert seen["tidegate_request_queue_seconds_count"] == 5, "what left in the queue never started"
    assert seen["tidegate_time_to_first_token_seconds_count"] == 4, "only what had a first token"
    assert seen["tidegate_request_decode_seconds_count"] == 4


async def test_phases_add_up_to_the_whole_and_are_not_zero():
    async with running_app(step_seconds=0.01) as served:
        await asyncio.gather(*(served.background(COMPLETIONS, completion(max_tokens=5)) for _ in range(3)))
        seen = await scrape(served)
    total = seen["tidegate_request_total_seconds_sum"]
    parts = [seen[f"tidegate_request_{phase}_seconds_sum"] for phase in ("queue", "prefill", "decode")]
    assert sum(parts) == pytest.approx(total, rel=0.2)
    assert parts[0] + seen["tidegate_request_inference_seconds_sum"] == pytest.approx(total)
    assert min(parts[1:]) > 0
    assert seen["tidegate_inter_token_latency_seconds_sum"] == pytest.approx(parts[2])
    assert seen["tidegate_inter_token_latency_seconds_count"] == 3 * 4


async def test_tokens_that_nobody_gets_are_counted_as_wasted():
    async with running_app() as served:
        served.gate.hold_after(steps=3)
        stream = served.engine.submit("leaves", [1], sampling(50))
        await served.eventually(lambda: served.gate.num_held == 1)
        stream.cancel()  # in the middle of a step: what that one samples is for nobody
        served.gate.release()
        await served.eventually_idle()
        wasted = (await scrape(served)).by("tidegate_wasted_tokens_total", "reason")
    assert wasted["after_disconnect"] == 1
    assert wasted["after_stop"] == 0


async def test_a_waiting_request_shows_as_waiting_for_capacity_and_its_blocks_as_reserved_once_it_runs():
    async with running_app(slots=1) as served:
        with served.gate.closed():
            requests = [served.background(COMPLETIONS, completion(max_tokens=33)) for _ in range(2)]
            await served.eventually(lambda: served.load().waiting == 1)
            busy = await scrape(served)
        await asyncio.gather(*requests)
        idle = await scrape(served)
    assert busy.by("vllm:num_requests_waiting_by_reason", "reason") == {"capacity": 1, "deferred": 0}
    assert (busy["vllm:num_requests_waiting"], busy["vllm:num_requests_running"]) == (1, 1)
    assert busy["tidegate_kv_blocks_reserved"] == 3  # 33 positions of 16
    assert 0 < busy["vllm:kv_cache_usage_perc"] <= 1
    assert idle["tidegate_kv_blocks_reserved"] == idle["vllm:kv_cache_usage_perc"] == 0


async def test_what_vllm_calls_otherwise_is_the_same_figure():
    async with running_app() as served:
        await served.client.post(COMPLETIONS, json=completion())
        seen = await scrape(served)
    names = {family.name: family for family in seen.families()}
    for ours, theirs in VLLM_ALIASES.items():
        assert names[ours].type == names[theirs].type
        values = [[sample.value for sample in names[name].samples] for name in (ours, theirs)]
        assert values[0] == values[1], ours
        assert all(set(sample.labels) >= MODEL_LABELS for sample in names[theirs].samples)


def test_tenants_beyond_the_largest_are_one_label():
    shares = {f"tenant-{number:03}": (number + 1) / 5050 for number in range(100)}
    seen = dict(largest(shares))
    assert len(seen) == MAX_TENANTS + 1
    assert sum(seen.values()) == pytest.approx(1)
    assert "tenant-099" in seen
    assert seen[OTHER_TENANTS] == pytest.approx(sum(list(shares.values())[:-MAX_TENANTS]))


def test_a_tally_counts_as_prometheus_buckets_do():
    tally = Tally((1, 2.5))
    for value in (0.5, 1, 1.1, 2.5, 9):
        tally.observe(value)
    assert tally.cumulative() == [("1.0", 2), ("2.5", 4), ("+Inf", 5)]
    assert (tally.count, tally.total) == (5, pytest.approx(14.1))


@dataclass
class FixedKeys:
    keys: ApiKeys
    fault: str | None = None


async def test_docs_list_every_metric_with_its_type_labels_and_meaning():
    async with running_app(access=Access(FixedKeys(ApiKeys.parse(key_line("k"))))) as served:
        with served.gate.closed():
            served.engine.submit("one", [1], sampling(CONTEXT // 2))  # so that every family has samples
            seen = await scrape(served)
    wanted = "\n".join(rows(seen))
    listed = PAGE.read_text().split("|---|---|---|---|---|\n")[1].split("\n\n")[0]
    assert listed == wanted, f"docs/metrics.md should have these rows:\n{wanted}"


def rows(seen: Scrape) -> Iterator[str]:
    aliases = set(VLLM_ALIASES.values())
    for family in seen.families():
        if family.name in aliases or family.name.startswith(PROCESS):
            continue
        total = "_total" if family.type == "counter" else ""
        alias = VLLM_ALIASES.get(family.name)
        theirs = f"`{alias}{total}`" if alias else ""
        labels = sorted({name for sample in family.samples for name in sample.labels} - MODEL_LABELS - {"le"})
        yield (f"| `{family.name}{total}` | {theirs} | {family.type} | {', '.join(labels)} | {family.documentation} |")


def sampling(max_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens)


async def test_both_ports_tell_the_same():
    async with running_app() as served:
        state = ProcessState(Phase.SERVING, served.engine, build_registry(served.engine, MODEL, start=START))
        transport = httpx.ASGITransport(create_admin_app(state, ()))
        async with httpx.AsyncClient(transport=transport, base_url="http://admin") as admin:
            seen = Scrape((await admin.get("/metrics")).text)
        assert {family.name for family in seen.families()} == {
            family.name for family in (await scrape(served)).families()
        }
