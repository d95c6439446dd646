"""GGUF metadata as the config.json it was made from.

So that sizing, the engine's models and transformers read one description whatever the file. Values that llama.cpp keeps
in its code instead of the file are restored here (Gemma's layer pattern, local rotary base and query scale).
Source: llama.cpp's convert_hf_to_gguf.py and src/llama-model.cpp.
"""

from struct import unpack

from tidegate_checkpoint.config_json import Json, complete
from tidegate_checkpoint.errors import CorruptCheckpoint, UnsupportedCheckpoint
from tidegate_checkpoint.gguf import GgufFile

_MODEL_TYPES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma3": "gemma3_text"}
_CLASSES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
}
_GEMMA3_27B_LAYERS = 62  # the one size whose query scale is not 1/sqrt(head_dim)
_SPECIAL_IDS = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}


def gguf_config(file: GgufFile) -> Json:
    """A completed config. Raises UnsupportedCheckpoint for architectures and layouts that are not served."""
    model_type = _model_type(file)
    prefix = file.architecture
    hidden_size = file.integer(f"{prefix}.embedding_length")
    num_heads = file.integer(f"{prefix}.attention.head_count")
    if num_heads < 1:
        raise CorruptCheckpoint(f"{file.path}: '{prefix}.attention.head_count' is {num_heads}; convert the model again")
    config: Json = {
        "model_type": model_type,
        "architectures": [_CLASSES[model_type]],
        "hidden_size": hidden_size,
        "intermediate_size": file.integer(f"{prefix}.feed_forward_length"),
        "num_hidden_layers": file.integer(f"{prefix}.block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": file.integer(f"{prefix}.attention.head_count_kv", num_heads),
        "head_dim": _head_dim(file, hidden_size // num_heads),
        "max_position_embeddings": file.integer(f"{prefix}.context_length"),
        "rms_norm_eps": file.real(f"{prefix}.attention.layer_norm_rms_epsilon"),
        "rope_theta": file.real(f"{prefix}.rope.freq_base", 10_000.0),
        "vocab_size": _vocab_size(file),
        "tie_word_embeddings": "output.weight" not in file.tensor_by_name,
        "attention_bias": model_type == "llama" and "blk.0.attn_q.bias" in file.tensor_by_name,
        "dtype": "bfloat16",
        **_special_ids(file),
        **_rope_scaling(file),
        **(_gemma3(file, hidden_size // num_heads) if model_type == "gemma3_text" else {}),
    }
    return complete(config, str(file.path))


def _model_type(file: GgufFile) -> str:
    architecture = file.architecture
    if architecture not in _MODEL_TYPES:
        raise UnsupportedCheckpoint(
            f"{file.path}: GGUF architecture '{architecture}' is not supported; supported are {', '.join(_MODEL_TYPES)}"
        )
    if (num_experts := file.integer(f"{architecture}.expert_count", 0)) > 0:
        raise UnsupportedCheckpoint(f"{file.path}: GGUF models with experts ({num_experts}) are not supported")
    if (num_files := file.integer("split.count", 1)) > 1:
        raise UnsupportedCheckpoint(
            f"{file.path} is one of {num_files} parts; join them with llama.cpp's `llama-gguf-split --merge`"
        )
    return _MODEL_TYPES[architecture]


def _head_dim(file: GgufFile, quotient: int) -> int:
    rotary = file.integer(f"{file.architecture}.rope.dimension_count", quotient)
    return file.integer(f"{file.architecture}.attention.key_length", rotary)


def _vocab_size(file: GgufFile) -> int:
    embedding = file.tensor_by_name.get("token_embd.weight")
    return embedding.shape[0] if embedding else file.integer(f"{file.architecture}.vocab_size")


def _special_ids(file: GgufFile) -> Json:
    keys = {name: f"tokenizer.ggml.{key}_token_id" for name, key in _SPECIAL_IDS.items()}
    return {name: file.integer(key) for name, key in keys.items() if key in file.metadata}


def _gemma3(file: GgufFile, heads_quotient: int) -> Json:
    is_27b = file.integer("gemma3.block_count") == _GEMMA3_27B_LAYERS
    return {
        "sliding_window": file.integer("gemma3.attention.sliding_window"),
        "sliding_window_pattern": file.integer("gemma3.attention.sliding_window_pattern", 6),
        "rope_local_base_freq": file.real("gemma3.rope.freq_base_swa", 10_000.0),
        "query_pre_attn_scalar": heads_quotient if is_27b else _head_dim(file, heads_quotient),
        "hidden_activation": "gelu_pytorch_tanh",
    }


def _rope_scaling(file: GgufFile) -> Json:
    prefix = f"{file.architecture}.rope.scaling"
    kind = file.text(f"{prefix}.type", "none")
    if "rope_freqs.weight" in file.tensor_by_name:
        return {"rope_scaling": _llama3_scaling(file)}
    if kind == "none":
        return {}
    scaling: Json = {"rope_type": kind, "factor": file.real(f"{prefix}.factor")}
    if kind == "yarn":
        scaling["original_max_position_embeddings"] = file.integer(f"{prefix}.original_context_length")
    elif kind != "linear":
        raise UnsupportedCheckpoint(f"{file.path}: rotary scaling '{kind}' is not supported")
    return {"rope_scaling": scaling}


def _llama3_scaling(file: GgufFile) -> Json:
    """Llama 3 files carry a divisor per frequency; the largest is `factor`, the rest is the same in every release."""
    divisors = file.tensor_by_name["rope_freqs.weight"]
    with file.path.open("rb") as stream:
        stream.seek(divisors.offset_bytes)
        values = unpack(f"<{divisors.num_elements}f", stream.read(divisors.num_bytes))
    return {
        "rope_type": "llama3",
        "factor": max(values),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
