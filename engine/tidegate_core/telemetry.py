"""Names that the engine exports and others read: ports, paths, the /load document, metric names.

Written once, so that a probe, a scrape, a dashboard and the engine cannot disagree. The `vllm:*` aliases are the names
of the Gateway API inference extension's model-server protocol, which existing gateways and dashboards read.
"""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

API_PORT = 8000
ADMIN_PORT = 8001

LIVEZ_PATH = "/livez"
READYZ_PATH = "/readyz"
METRICS_PATH = "/metrics"
LOAD_PATH = "/load"
DRAIN_PATH = "/drain"
UNDRAIN_PATH = "/undrain"


MAX_COUNT = 2**53  # exact in every JSON reader; a report with more is nonsense

Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]


class _Wire(BaseModel):
    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, frozen=True, extra="ignore", allow_inf_nan=False
    )


class StepFit(_Wire):
    """Step seconds = base + per_token * batched tokens + per_context_token * resident KV tokens, fitted online."""

    base_seconds: float = 0.0
    seconds_per_token: float = 0.0
    seconds_per_context_token: float = 0.0
    num_samples: int = 0


class EngineSizing(_Wire):
    """What the engine really allocated, to be compared with what was planned."""

    context: Count
    slots: Count
    kv_blocks_total: Count
    block_size: Count
    kv_bytes: Count
    weight_bytes: Count
    resident_bytes: Count = Field(description="private memory of the engine process (RssAnon)")


class LoadReport(_Wire):
    """Body of GET /load on the admin port: cumulative counters since `boot_id`, and the state of this moment."""

    boot_id: str = Field(description="changes when the process restarts, so that a counter that fell is understood")
    arrivals: Count = Field(description="requests seen, capacity refusals included, client errors not")
    rejects: Count = Field(description="refusals for lack of capacity")
    completions: Count
    preemptions: Count
    running: Count
    waiting: Count
    kv_blocks_used: Count = Field(description="blocks held by live requests")
    kv_blocks_total: Count
    eta_seconds: float = Field(ge=0, description="predicted wait of a p90 request that arrives now")
    draining: bool
    step_fit: StepFit
    sizing: EngineSizing


class Metric:
    """Prometheus names of the engine, `_total` appended by the client to counters."""

    REQUESTS_RUNNING = "tidegate_requests_running"
    REQUESTS_WAITING = "tidegate_requests_waiting"
    KV_BLOCKS_USED = "tidegate_kv_blocks_used"
    KV_BLOCKS_TOTAL = "tidegate_kv_blocks"
    ARRIVALS = "tidegate_requests_arrived"
    REJECTS = "tidegate_requests_rejected"
    COMPLETIONS = "tidegate_requests_completed"
    PREEMPTIONS = "tidegate_preemptions"
    PROMPT_TOKENS = "tidegate_prompt_tokens"
    GENERATION_TOKENS = "tidegate_generation_tokens"
    PREDICTED_WAIT_SECONDS = "tidegate_predicted_queue_wait_seconds"
    TTFT_SECONDS = "tidegate_time_to_first_token_seconds"
    ITL_SECONDS = "tidegate_inter_token_latency_seconds"


VLLM_ALIASES = {
    Metric.REQUESTS_RUNNING: "vllm:num_requests_running",
    Metric.REQUESTS_WAITING: "vllm:num_requests_waiting",
    Metric.PREEMPTIONS: "vllm:num_preemptions",
    Metric.PROMPT_TOKENS: "vllm:prompt_tokens",
    Metric.GENERATION_TOKENS: "vllm:generation_tokens",
    Metric.TTFT_SECONDS: "vllm:time_to_first_token_seconds",
    Metric.ITL_SECONDS: "vllm:inter_token_latency_seconds",
}
VLLM_KV_USAGE = "vllm:kv_cache_usage_perc"
VLLM_CACHE_CONFIG = "vllm:cache_config_info"
