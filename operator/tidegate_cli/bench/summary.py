"""Outcomes as the figures that matter to a client: one Summary, printed as a table or as JSON. Pure.

Goodput is requests a second that met the objectives (DistServe, OSDI 2024). ITL is every gap between pieces of text, so
a stall shows in its p99; TPOT is each request's mean, which other tools call ITL. Times are milliseconds.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tidegate_cli.bench.outcome import Ending, Outcome

QUANTILES = (50, 95, 99)
MAX_FAULTS = 5


@dataclass(frozen=True)
class Objectives:
    """What a request must meet to count as good: first token, and the mean time between tokens after it."""

    ttft_milliseconds: float = 2000.0
    itl_milliseconds: float = 100.0

    def are_met(self, outcome: Outcome) -> bool:
        ttft, tpot = outcome.ttft_seconds, outcome.tpot_seconds
        if outcome.ending is not Ending.COMPLETED or ttft is None:
            return False
        return ttft * 1000 <= self.ttft_milliseconds and (tpot or 0.0) * 1000 <= self.itl_milliseconds


@dataclass(frozen=True)
class Quantiles:
    """Milliseconds; None where nothing was measured."""

    p50: float | None
    p95: float | None
    p99: float | None

    @classmethod
    def of(cls, seconds: Iterable[float | None]) -> "Quantiles":
        known = sorted(second for second in seconds if second is not None)
        return cls(*(_quantile(known, percent / 100) for percent in QUANTILES))


@dataclass(frozen=True)
class Summary:
    """One run. Rates are per second of the run, which lasts from its beginning to the last answer's end."""

    num_requests: int
    num_completed: int
    num_rejected: int
    num_failed: int
    duration_seconds: float
    requests_per_second: float
    output_tokens_per_second: float
    prompt_tokens_per_second: float
    goodput: float
    good_share: float
    mean_prompt_tokens: float
    mean_output_tokens: float
    cached_share: float
    ttft: Quantiles
    itl: Quantiles
    tpot: Quantiles
    e2e: Quantiles
    max_gap_milliseconds: float | None
    faults: tuple[tuple[str, int], ...]


def summarise(outcomes: Sequence[Outcome], objectives: Objectives) -> Summary:
    completed = [outcome for outcome in outcomes if outcome.ending is Ending.COMPLETED]
    started = min((outcome.sent_seconds for outcome in outcomes), default=0.0)
    duration = max((outcome.ended_seconds for outcome in outcomes), default=0.0) - started
    num_good = sum(objectives.are_met(outcome) for outcome in completed)
    prompt_tokens = sum(outcome.num_prompt_tokens for outcome in completed)
    output_tokens = sum(outcome.num_output_tokens for outcome in completed)
    gaps = [gap for outcome in completed for gap in outcome.gaps_seconds()]
    counts = Counter(outcome.ending for outcome in outcomes)
    faults = Counter(outcome.fault for outcome in outcomes if outcome.fault)
    return Summary(
        num_requests=len(outcomes),
        num_completed=len(completed),
        num_rejected=counts[Ending.REJECTED],
        num_failed=counts[Ending.FAILED],
        duration_seconds=duration,
        requests_per_second=_ratio(len(completed), duration),
        output_tokens_per_second=_ratio(output_tokens, duration),
        prompt_tokens_per_second=_ratio(prompt_tokens, duration),
        goodput=_ratio(num_good, duration),
        good_share=_ratio(num_good, len(outcomes)),
        mean_prompt_tokens=_ratio(prompt_tokens, len(completed)),
        mean_output_tokens=_ratio(output_tokens, len(completed)),
        cached_share=_ratio(sum(outcome.num_cached_tokens for outcome in completed), prompt_tokens),
        ttft=Quantiles.of(outcome.ttft_seconds for outcome in completed),
        itl=Quantiles.of(gaps),
        tpot=Quantiles.of(outcome.tpot_seconds for outcome in completed),
        e2e=Quantiles.of(outcome.e2e_seconds for outcome in completed),
        max_gap_milliseconds=max(gaps) * 1000 if gaps else None,
        faults=tuple(faults.most_common(MAX_FAULTS)),
    )


def to_json(summary: Summary) -> str:
    """The documented keys; figures keep three decimals."""
    document = {
        "requests": summary.num_requests,
        "completed": summary.num_completed,
        "failed": summary.num_failed,
        "rejected": summary.num_rejected,
        "durationSeconds": summary.duration_seconds,
        "requestsPerSecond": summary.requests_per_second,
        "outputTokensPerSecond": summary.output_tokens_per_second,
        "promptTokensPerSecond": summary.prompt_tokens_per_second,
        "goodput": summary.goodput,
        "goodShare": summary.good_share,
        "meanPromptTokens": summary.mean_prompt_tokens,
        "meanOutputTokens": summary.mean_output_tokens,
        "cachedShare": summary.cached_share,
        "ttftMilliseconds": vars(summary.ttft),
        "itlMilliseconds": vars(summary.itl),
        "tpotMilliseconds": vars(summary.tpot),
        "e2eMilliseconds": vars(summary.e2e),
        "maxGapMilliseconds": summary.max_gap_milliseconds,
        "faults": [{"fault": fault, "count": count} for fault, count in summary.faults],
    }
    return json.dumps(_rounded(document), indent=2)


def to_table(summary: Summary, objectives: Objectives) -> str:
    """For people: counts, rates, latencies, then what went wrong."""
    objective = f"TTFT <= {objectives.ttft_milliseconds:g} ms, TPOT <= {objectives.itl_milliseconds:g} ms"
    sizes = f"{summary.mean_prompt_tokens:.0f} in, {summary.mean_output_tokens:.0f} out"
    ends = f"{summary.num_completed} completed, {summary.num_rejected} rejected, {summary.num_failed} failed"
    rates = f"{summary.output_tokens_per_second:.1f}/s out, {summary.prompt_tokens_per_second:.1f}/s in"
    lines = [
        f"requests   {summary.num_requests}: {ends} in {summary.duration_seconds:.1f} s",
        f"tokens     {rates}; a request has {sizes}; {summary.cached_share:.0%} of prompts from a cache",
        f"goodput    {summary.goodput:.2f} requests/s, {summary.good_share:.0%} of all ({objective})",
        "",
        f"{'milliseconds':<12}{'p50':>10}{'p95':>10}{'p99':>10}",
        *(
            f"{name:<12}" + "".join(_cell(value) for value in vars(quantiles).values())
            for name, quantiles in (
                ("TTFT", summary.ttft),
                ("ITL", summary.itl),
                ("TPOT", summary.tpot),
                ("end to end", summary.e2e),
            )
        ),
        f"{'longest gap':<12}{_cell(summary.max_gap_milliseconds)}",
    ]
    faults = [f"{count} x {fault}" for fault, count in summary.faults]
    return "\n".join([*lines, "", *faults] if faults else lines)


def _cell(value: float | None) -> str:
    return f"{'-':>10}" if value is None else f"{value:>10.1f}"


def _quantile(ordered: Sequence[float], share: float) -> float | None:
    """Linear between the two nearest ranks, as numpy's default; in milliseconds."""
    if not ordered:
        return None
    rank = share * (len(ordered) - 1)
    low = math.floor(rank)
    high = min(low + 1, len(ordered) - 1)
    return (ordered[low] + (ordered[high] - ordered[low]) * (rank - low)) * 1000


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _rounded(value: object) -> object:
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return value
