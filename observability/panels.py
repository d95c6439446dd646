"""What the dashboard shows: rows of panels, each a question that an on-call engineer asks, and its queries. No library.

dashboard.py draws them; a test evaluates every query over a real run. `$namespace` and `$pool` are the dashboard's
variables. Engines carry the label `pool` from their PodMonitor.
"""

from typing import NamedTuple

from tidegate_operator.api.conditions import BAD_WHEN_TRUE

POOL = 'namespace=~"$namespace", pool=~"$pool"'
BY = "namespace, pool"
LEGEND = "{{namespace}}/{{pool}}"
BAD = "|".join(sorted(BAD_WHEN_TRUE))  # conditions that are absent or False while all is well


class Query(NamedTuple):
    """PromQL and how its series are called."""

    expr: str
    legend: str = LEGEND


class Panel(NamedTuple):
    """One picture. `unit` is Grafana's identifier; `is_number`: the last value counts, not its course."""

    title: str
    unit: str
    queries: tuple[Query, ...]
    description: str = ""
    is_number: bool = False


def _sum(metric: str) -> str:
    return f"sum by ({BY}) ({metric}{{{POOL}}})"


def _rate(counter: str, *, by: str = BY) -> str:
    return f"sum by ({by}) (rate({counter}{{{POOL}}}[$__rate_interval]))"


def _p95(histogram: str) -> str:
    return f"histogram_quantile(0.95, {_rate(f'{histogram}_bucket', by=f'le, {BY}')})"


ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "Pools",
        (
            Panel("Ready", "bool_yes_no", (Query(f'tidegate_pool_condition{{{POOL}, type="Ready"}}'),), is_number=True),
            Panel(
                "Why",
                "none",
                (Query(f"tidegate_pool_info{{{POOL}}}", "{{namespace}}/{{pool}}: {{phase}}"),),
                "Ready, or the reason of the first condition that is not good.",
                is_number=True,
            ),
            Panel(
                "Replicas",
                "short",
                (
                    Query(f"tidegate_pool_desired_replicas{{{POOL}}}", f"{LEGEND} wanted"),
                    Query(f"tidegate_pool_ready_replicas{{{POOL}}}", f"{LEGEND} ready"),
                ),
            ),
            Panel(
                "Conditions that are not good",
                "short",
                (
                    Query(
                        f'tidegate_pool_condition{{{POOL}, type!~"{BAD}"}} < bool 1',
                        f"{LEGEND} {{{{type}}}}",
                    ),
                    Query(
                        f'tidegate_pool_condition{{{POOL}, type=~"{BAD}"}}',
                        f"{LEGEND} {{{{type}}}}",
                    ),
                ),
                "1 while a condition says that something is wrong or under way.",
            ),
        ),
    ),
    (
        "What users feel",
        (
            Panel(
                "Predicted wait and objective",
                "s",
                (
                    Query(f"max by ({BY}) (tidegate_predicted_queue_wait_seconds{{{POOL}}})", f"{LEGEND} wait"),
                    Query(f"tidegate_pool_ttft_objective_seconds{{{POOL}}}", f"{LEGEND} objective"),
                ),
                "Of a usual request that arrives now, at the replica where it would wait longest.",
            ),
            Panel("Time to first token, p95", "s", (Query(_p95("tidegate_time_to_first_token_seconds")),)),
            Panel("Between two tokens, p95", "s", (Query(_p95("tidegate_inter_token_latency_seconds")),)),
            Panel(
                "Requests",
                "reqps",
                (
                    Query(_rate("tidegate_requests_arrived_total"), f"{LEGEND} arrived"),
                    Query(_rate("tidegate_requests_completed_total"), f"{LEGEND} completed"),
                ),
            ),
            Panel(
                "Refused",
                "reqps",
                (Query(_rate("tidegate_requests_refused_total", by=f"reason, {BY}"), f"{LEGEND} {{{{reason}}}}"),),
            ),
            Panel("Tokens generated", "ops", (Query(_rate("tidegate_generation_tokens_total")),)),
        ),
    ),
    (
        "Capacity",
        (
            Panel(
                "Running and waiting",
                "short",
                (
                    Query(_sum("tidegate_requests_running"), f"{LEGEND} running"),
                    Query(_sum("tidegate_requests_waiting"), f"{LEGEND} waiting"),
                ),
            ),
            Panel(
                "KV cache in use",
                "percentunit",
                (Query(f"{_sum('tidegate_kv_blocks_used')} / {_sum('tidegate_kv_blocks')}"),),
                "Held by requests; what is only cached is free.",
            ),
            Panel("Preemptions", "ops", (Query(_rate("tidegate_preemptions_total")),)),
            Panel(
                "Prefix cache hits",
                "percentunit",
                (
                    Query(
                        f"{_rate('tidegate_prefix_cache_hit_tokens_total')} / "
                        f"({_rate('tidegate_prefix_cache_queried_tokens_total')} > 0)"
                    ),
                ),
            ),
        ),
    ),
    (
        "Starts and cost",
        (
            Panel(
                "Cold start, p90",
                "s",
                (Query(f'tidegate_pool_cold_start_p90_seconds{{{POOL}, phase!="all"}}', f"{LEGEND} {{{{phase}}}}"),),
                "Of the last ten replicas, by phase.",
            ),
            Panel(
                "Cost of an hour",
                "none",
                (Query(f"tidegate_pool_cost_per_hour{{{POOL}}}"),),
                "By the operator's price list, in its currency.",
            ),
            Panel(
                "Cost of a million generated tokens",
                "none",
                (
                    Query(
                        f"sum by ({BY}) (rate(tidegate_pool_cost_total{{{POOL}}}[$__rate_interval])) * 1e6 / "
                        f"({_rate('tidegate_generation_tokens_total')} > 0)"
                    ),
                ),
            ),
        ),
    ),
    (
        "Operator",
        (
            Panel("Leaders", "short", (Query("sum(tidegate_operator_leader)", "leaders"),), is_number=True),
            Panel(
                "Reconciles",
                "ops",
                (Query("sum by (result) (rate(tidegate_operator_reconcile_total[$__rate_interval]))", "{{result}}"),),
            ),
            Panel(
                "Time of a reconcile, p95",
                "s",
                (
                    Query(
                        "histogram_quantile(0.95, sum by (le) "
                        "(rate(tidegate_operator_reconcile_time_seconds_bucket[$__rate_interval])))",
                        "p95",
                    ),
                ),
            ),
        ),
    ),
)
