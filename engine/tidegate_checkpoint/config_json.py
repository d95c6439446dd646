"""config.json as the rest of the code may rely on it: the text model's own, complete, in one spelling.

Published configs leave out what equals their class's default, hide the language model in `text_config` when it also
sees images, and spell rotary settings in two ways (`rope_theta` beside `rope_scaling`, or `rope_parameters`).
Called by the shape reader and by the engine's weights; GGUF metadata passes through the same function.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from tidegate_checkpoint.errors import CorruptCheckpoint, MissingCheckpoint, UnsupportedCheckpoint
from tidegate_checkpoint.location import CONFIG_FILE

Json = dict[str, object]

FULL_ATTENTION, SLIDING_ATTENTION = "full_attention", "sliding_attention"

# What a config of this model_type means where it is silent: the defaults of its class in transformers. Sizes of a
# particular model (hidden size, layers) are here only where published configs really leave them out.
_DEFAULTS: Mapping[str, Mapping[str, object]] = {
    "llama": {"max_position_embeddings": 2048, "hidden_act": "silu", "vocab_size": 32000},
    "mistral": {"max_position_embeddings": 131072, "hidden_act": "silu", "sliding_window": 4096, "vocab_size": 32000},
    "qwen2": {"max_position_embeddings": 32768, "hidden_act": "silu", "max_window_layers": 28},
    "qwen3": {"max_position_embeddings": 32768, "hidden_act": "silu", "max_window_layers": 28, "head_dim": 128},
    "gemma3_text": {
        "vocab_size": 262208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": True,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
        "query_pre_attn_scalar": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
    },
    "mixtral": {"max_position_embeddings": 131072, "hidden_act": "silu", "num_local_experts": 8, "rope_theta": 1e6},
    "deepseek_v2": {
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
    },
    "deepseek_v3": {
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "first_k_dense_replace": 3,
    },
}
_COMMON_DEFAULTS: Mapping[str, object] = {
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "rope_scaling": None,
    "attention_bias": False,
    "mlp_bias": False,
}
SERVED = ("llama", "mistral", "qwen2", "qwen3", "gemma3_text")  # what the engine runs: the keys of its registry
_SIZED = tuple(_DEFAULTS)  # these and those that can only be sized
MAX_LAYERS = 10_000  # far beyond any model: a broken number must not fill the memory with layers
_MEANINGFUL_NULLS = ("sliding_window", "q_lora_rank", "n_routed_experts")  # null says "none", not "as usual"
_TEXT_MODEL_OF = {"gemma3": "gemma3_text", "llava": "llama", "mistral3": "mistral"}  # where text_config is silent
_SHARED_WITH_TEXT = ("tie_word_embeddings", "dtype", "torch_dtype", "eos_token_id", "bos_token_id", "pad_token_id")


def read_config(directory: Path) -> Json:
    """The completed config of a model directory. Raises CheckpointError."""
    file = directory / CONFIG_FILE
    return complete(read_object(file), str(file))


def read_object(file: Path) -> Json:
    """What a JSON file beside the weights holds, uninterpreted. Raises CheckpointError."""
    try:
        raw = json.loads(file.read_bytes())
    except FileNotFoundError as error:
        raise MissingCheckpoint(f"{file} does not exist; copy the model's there") from error
    except (ValueError, RecursionError) as error:
        raise CorruptCheckpoint(f"{file} is not valid JSON ({error}); fetch it again") from error
    if not isinstance(raw, dict):
        raise CorruptCheckpoint(f"{file} holds a JSON {type(raw).__name__}, not an object; fetch it again")
    return raw


def read_optional_object(file: Path) -> Json:
    """Empty where there is no such file. Raises CorruptCheckpoint."""
    return read_object(file) if file.is_file() else {}


def complete(raw: Json, source: str) -> Json:
    """The text model's config with every key present that shape and engine read; `source` names it in errors."""
    config = _text_config(raw, source)
    if quantization := raw.get("quantization_config"):
        method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization
        raise UnsupportedCheckpoint(
            f"{source}: weights quantised by '{method}' are not served; use an unquantised copy"
        )
    given = {key: value for key, value in config.items() if value is not None or key in _MEANINGFUL_NULLS}
    rope = {**_scaling(config.get("rope_scaling")), **_flat_rope(config.get("rope_parameters"))}
    merged: Json = {**_COMMON_DEFAULTS, **_DEFAULTS[str(config["model_type"])], **given, **rope}
    merged.setdefault("num_key_value_heads", merged.get("num_attention_heads"))
    merged.setdefault("head_dim", _head_dim(merged))
    merged["dtype"] = merged.get("dtype", merged.get("torch_dtype", "bfloat16"))
    merged["layer_types"] = _layer_types(merged, source)
    return merged


def why_not_served(architecture: str) -> str | None:
    """A sentence about an architecture that can be sized and not run; None for those that are served."""
    if architecture in SERVED:
        return None
    return f"{architecture} can be sized, but this version does not serve it; served: {', '.join(SERVED)}"


def _text_config(raw: Json, source: str) -> Json:
    model_type = str(raw.get("model_type", ""))
    inner = raw.get("text_config")
    if model_type in _SIZED:
        return raw
    if isinstance(inner, dict):
        shared = {key: raw[key] for key in _SHARED_WITH_TEXT if key in raw}
        text: Json = {"model_type": _TEXT_MODEL_OF.get(model_type, ""), **shared, **inner}
        if text["model_type"] in _SIZED:
            return text
        model_type = f"{model_type} ({text['model_type']})"
    raise UnsupportedCheckpoint(f"{source}: model_type '{model_type}' is not supported; served: {', '.join(SERVED)}")


def _flat_rope(parameters: object) -> Json:
    """rope_parameters in the older spelling; Gemma 3 has one set for full and one for sliding layers."""
    match parameters:
        case {"full_attention": dict(full), "sliding_attention": dict(sliding)}:
            local = {"rope_local_base_freq": sliding["rope_theta"]} if "rope_theta" in sliding else {}
            return {**_flat_rope(full), **local}
        case dict():
            theta = {"rope_theta": parameters["rope_theta"]} if "rope_theta" in parameters else {}
            return {**theta, **_scaling({key: value for key, value in parameters.items() if key != "rope_theta"})}
        case _:
            return {}


def _scaling(parameters: object) -> Json:
    """rope_scaling with its kind under `rope_type` (older configs say `type`); None where it changes nothing."""
    if not isinstance(parameters, dict):
        return {}
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    rest = {key: value for key, value in parameters.items() if key != "type"}
    return {"rope_scaling": None if kind == "default" else {**rest, "rope_type": kind}}


def _head_dim(config: Json) -> int | None:
    hidden_size, num_heads = config.get("hidden_size"), config.get("num_attention_heads")
    if isinstance(hidden_size, int) and isinstance(num_heads, int) and num_heads > 0:
        return hidden_size // num_heads
    return None


def _layer_types(config: Json, source: str) -> list[str]:
    num_layers = config.get("num_hidden_layers")
    if not isinstance(num_layers, int) or not 1 <= num_layers <= MAX_LAYERS:
        found = "missing" if num_layers is None else repr(num_layers)
        raise CorruptCheckpoint(f"{source}: num_hidden_layers is {found}; fetch the config again")
    given = config.get("layer_types")
    if isinstance(given, list) and len(given) == num_layers:
        return [str(kind) for kind in given]
    pattern = _sliding_window_pattern(config)
    if isinstance(pattern, int) and pattern < 1:
        raise CorruptCheckpoint(f"{source}: sliding_window_pattern is {pattern}; fetch the config again")
    is_sliding = [_is_sliding(config, layer) for layer in range(num_layers)]
    return [SLIDING_ATTENTION if sliding else FULL_ATTENTION for sliding in is_sliding]


def _sliding_window_pattern(config: Json) -> object:
    """One layer in so many sees everything; newer configs keep the key as a private one."""
    return config.get("_sliding_window_pattern", config.get("sliding_window_pattern"))


def _is_sliding(config: Json, layer: int) -> bool:
    """Which layers a config without layer_types means; each family has its own rule."""
    match config["model_type"]:
        case "gemma3_text":
            pattern = _sliding_window_pattern(config)
            return isinstance(pattern, int) and (layer + 1) % pattern != 0
        case "qwen2" | "qwen3":
            first = config["max_window_layers"]
            return bool(config.get("use_sliding_window")) and isinstance(first, int) and layer >= first
        case "mistral" | "mixtral":
            return config.get("sliding_window") is not None
        case _:
            return False
