"""Engine flags that a pool adds to the operator's own: which may be, why others may not, and where they go. Pure.

planning.py asks before it renders a template, rendering.py adds them, `tidegate plan -f` refuses with the same
sentence. A flag that the operator sets, or that another field of the spec stands for, is refused: two masters would
contradict.
"""

from tidegate_core.errors import BadLaunch
from tidegate_core.launch import EngineLaunch
from tidegate_operator.api.v1alpha1 import InferencePool

FREE = ("attention", "prefix_cache", "deterministic", "tool_parser", "reasoning_parser", "threads")
STANDS_FOR = {
    "device": "accelerator.resource",
    "tensor_parallel": "accelerator.count",
    "context": "context.max",
    "slots": "traffic",
    "kv_memory": "pod.resources.limits.memory",
    "kv_dtype": "model.kvCacheDtype",
    "quantization": "model.quantization",
    "max_queue": "queue.maxRequests",
    "max_queue_tokens": "queue.maxTokens",
    "max_wait_seconds": "queue.maxWaitSeconds",
    "prompt_tokens": "traffic.promptTokens",
    "output_tokens": "traffic.outputTokens",
    "itl_ms": "objectives.itlMilliseconds",
    "served_name": "model.servedNames",
    "chat_template": "model.chatTemplate",
    "api_keys_file": "access.apiKeysSecretRef",
    "trust_fairness_header": "access.trustFairnessHeader",
    "drain_seconds": "drain.timeoutSeconds",
}


def refusal(pool: InferencePool) -> str:
    """What is wrong with the pool's extra flags; empty where nothing is."""
    if not pool.spec.engine.extra_args:
        return ""
    try:
        extra = _parsed(pool)
    except BadLaunch as error:
        return f"engine.extraArgs: {error}; `tidegate serve --help` lists the flags"
    if taken := [name for name in EngineLaunch.model_fields if name in _given(extra) and name not in FREE]:
        return "engine.extraArgs: " + "; ".join(map(_instead, taken))
    if extra.deterministic and not pool.spec.accelerator.is_cpu:
        return "engine.extraArgs: --deterministic is for cpu pools: on a GPU products still depend on the batch"
    return ""


def with_extra_args(launch: EngineLaunch, pool: InferencePool) -> EngineLaunch:
    """The engine's arguments with those the pool adds, of which refusal() found nothing."""
    extra = _parsed(pool)
    return launch.model_copy(update={name: getattr(extra, name) for name in _given(extra)})


def _parsed(pool: InferencePool) -> EngineLaunch:
    """Raises BadLaunch."""
    return EngineLaunch.from_args(["model", *pool.spec.engine.extra_args])


def _given(extra: EngineLaunch) -> set[str]:
    return extra.model_fields_set - {"model"}


def _instead(name: str) -> str:
    flag = "--" + name.replace("_", "-")
    field = STANDS_FOR.get(name)
    return f"{flag} is set by {field}; change that instead" if field else f"{flag} is the operator's own; leave it out"
