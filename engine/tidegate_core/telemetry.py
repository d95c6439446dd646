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
MAX_START_SECONDS = 10**9  # it becomes whole seconds in a status, which hold no more than 64 bits

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
    loaded_bytes: Count = Field(
        default=0, description="memory of the device in use once weights were there: runtime and weights; 0: no weights"
    )


class StartReport(_Wire):
    """How long this process took until it could serve, by itself: scheduling and pulling came before."""

    load_seconds: float = Field(
        ge=0, le=MAX_START_SECONDS, description="from the process's start to weights, tokenizer and KV pool"
    )
    warm_up_seconds: float = Field(
        ge=0, le=MAX_START_SECONDS, description="first steps, which allocate and on a GPU compile"
    )


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
    kv_blocks_cached: Count = Field(default=0, description="blocks that the prefix cache would find again")
    prefix_hit_share: float = Field(default=0.0, ge=0, le=1, description="part of all prompt tokens it had")
    request_p99_seconds: float | None = Field(
        default=None, ge=0, description="from acceptance to the end, 99 of 100; absent before there were 100"
    )
    eta_seconds: float = Field(ge=0, description="predicted wait of a p90 request that arrives now")
    draining: bool
    step_fit: StepFit
    sizing: EngineSizing
    start: StartReport | None = Field(default=None, description="absent from engines that do not measure it")


class Metric:
    """Prometheus names of the engine, `_total` appended by the client to counters."""

    REQUESTS_RUNNING = "tidegate_requests_running"
    REQUESTS_WAITING = "tidegate_requests_waiting"
    PREDICTED_WAIT_SECONDS = "tidegate_predicted_queue_wait_seconds"
    DRAINING = "tidegate_draining"
    TENANT_SHARE = "tidegate_tenant_share"
    START_SECONDS = "tidegate_start_seconds"

    KV_BLOCKS_TOTAL = "tidegate_kv_blocks"
    KV_BLOCKS_USED = "tidegate_kv_blocks_used"
    KV_BLOCKS_CACHED = "tidegate_kv_blocks_cached"
    KV_BLOCKS_RESERVED = "tidegate_kv_blocks_reserved"
    PREFIX_QUERIED_TOKENS = "tidegate_prefix_cache_queried_tokens"
    PREFIX_HIT_TOKENS = "tidegate_prefix_cache_hit_tokens"

    ARRIVALS = "tidegate_requests_arrived"
    REJECTS = "tidegate_requests_rejected"
    REFUSALS = "tidegate_requests_refused"
    COMPLETIONS = "tidegate_requests_completed"
    FINISHED = "tidegate_requests_finished"
    PREEMPTIONS = "tidegate_preemptions"
    PROMPT_TOKENS = "tidegate_prompt_tokens"
    GENERATION_TOKENS = "tidegate_generation_tokens"
    WASTED_TOKENS = "tidegate_wasted_tokens"

    STEP_BASE_SECONDS = "tidegate_step_base_seconds"
    STEP_SECONDS_PER_TOKEN = "tidegate_step_seconds_per_token"  # noqa: S105 - a metric's name
    STEP_SECONDS_PER_CONTEXT_TOKEN = "tidegate_step_seconds_per_context_token"  # noqa: S105 - a metric's name
    STEP_TOKENS = "tidegate_step_tokens"

    TTFT_SECONDS = "tidegate_time_to_first_token_seconds"
    ITL_SECONDS = "tidegate_inter_token_latency_seconds"
    TOKEN_SECONDS = "tidegate_request_time_per_output_token_seconds"  # noqa: S105 - a metric's name
    TOTAL_SECONDS = "tidegate_request_total_seconds"
    QUEUE_SECONDS = "tidegate_request_queue_seconds"
    INFERENCE_SECONDS = "tidegate_request_inference_seconds"
    PREFILL_SECONDS = "tidegate_request_prefill_seconds"
    DECODE_SECONDS = "tidegate_request_decode_seconds"
    REQUEST_PROMPT_TOKENS = "tidegate_request_prompt_tokens"
    REQUEST_OUTPUT_TOKENS = "tidegate_request_output_tokens"
    REQUEST_MAX_TOKENS = "tidegate_request_max_tokens"
    REQUEST_CHOICES = "tidegate_request_choices"

    API_KEYS = "tidegate_api_keys"
    API_KEYS_OUTDATED = "tidegate_api_keys_outdated"


VLLM_ALIASES = {
    Metric.REQUESTS_RUNNING: "vllm:num_requests_running",
    Metric.REQUESTS_WAITING: "vllm:num_requests_waiting",
    Metric.FINISHED: "vllm:request_success",
    Metric.PREEMPTIONS: "vllm:num_preemptions",
    Metric.PROMPT_TOKENS: "vllm:prompt_tokens",
    Metric.PREFIX_QUERIED_TOKENS: "vllm:prefix_cache_queries",
    Metric.PREFIX_HIT_TOKENS: "vllm:prefix_cache_hits",
    Metric.GENERATION_TOKENS: "vllm:generation_tokens",
    Metric.STEP_TOKENS: "vllm:iteration_tokens_total",
    Metric.TTFT_SECONDS: "vllm:time_to_first_token_seconds",
    Metric.ITL_SECONDS: "vllm:inter_token_latency_seconds",
    Metric.TOKEN_SECONDS: "vllm:request_time_per_output_token_seconds",
    Metric.TOTAL_SECONDS: "vllm:e2e_request_latency_seconds",
    Metric.QUEUE_SECONDS: "vllm:request_queue_time_seconds",
    Metric.INFERENCE_SECONDS: "vllm:request_inference_time_seconds",
    Metric.PREFILL_SECONDS: "vllm:request_prefill_time_seconds",
    Metric.DECODE_SECONDS: "vllm:request_decode_time_seconds",
    Metric.REQUEST_PROMPT_TOKENS: "vllm:request_prompt_tokens",
    Metric.REQUEST_OUTPUT_TOKENS: "vllm:request_generation_tokens",
    Metric.REQUEST_MAX_TOKENS: "vllm:request_params_max_tokens",
    Metric.REQUEST_CHOICES: "vllm:request_params_n",
}
VLLM_WAITING_BY_REASON = "vllm:num_requests_waiting_by_reason"
VLLM_KV_USAGE = "vllm:kv_cache_usage_perc"
VLLM_CACHE_CONFIG = "vllm:cache_config_info"
