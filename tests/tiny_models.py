"""Small random models of each family, saved the way they are published, and what transformers answers with them."""

from collections.abc import Sequence
from pathlib import Path

import torch
import transformers

COMMON = {
    "vocab_size": 211,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 2.0}
GEMMA_ROPE = {
    "full_attention": {"rope_type": "linear", "rope_theta": 50_000.0, "factor": 4.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
}
GEMMA = {"head_dim": 32, "query_pre_attn_scalar": 20, "sliding_window": 16, "rope_parameters": GEMMA_ROPE}

CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(**COMMON),
    "llama_llama3_rope_tied": lambda: transformers.LlamaConfig(
        **COMMON, rope_parameters=LLAMA3_ROPE, tie_word_embeddings=True
    ),
    "llama_linear_rope_bias": lambda: transformers.LlamaConfig(
        **COMMON, rope_parameters=LINEAR_ROPE, attention_bias=True, mlp_bias=True
    ),
    "mistral_window": lambda: transformers.MistralConfig(**COMMON, sliding_window=24, head_dim=24),
    "qwen2_bias": lambda: transformers.Qwen2Config(**COMMON),
    "qwen3_qk_norm": lambda: transformers.Qwen3Config(**COMMON, head_dim=32),
    "gemma3": lambda: transformers.Gemma3TextConfig(
        **COMMON, **GEMMA, layer_types=["sliding_attention", "full_attention"]
    ),
    "gemma3_softcap": lambda: transformers.Gemma3TextConfig(
        **COMMON, **GEMMA, layer_types=["sliding_attention", "full_attention"], final_logit_softcapping=5.0
    ),
}


def save_tiny_model(
    name: str, folder: Path, dtype: torch.dtype = torch.float32, **changes: int
) -> transformers.PreTrainedModel:
    """A model with weights large enough that its answers vary; eager attention, the plainest there is.

    `changes` to its configuration.
    """
    torch.manual_seed(3)
    config = CONFIGS[name]()
    config.update(changes)
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.3 if parameter.dim() == 1 else 0.15)
        for key, parameter in model.named_parameters():
            if "embed_tokens" in key and name.startswith("gemma"):
                parameter.mul_(
                    0.1
                )  # Gemma scales embeddings up; tied to the head they would only repeat the last token
            if key.endswith("norm.weight") and not name.startswith("gemma"):
                parameter.add_(1.0)
    model.save_pretrained(folder)
    return model


def greedy(model: transformers.PreTrainedModel, prompt: Sequence[int], num_tokens: int) -> list[int]:
    """transformers' own continuation."""
    answer = model.generate(
        torch.tensor([list(prompt)]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=num_tokens,
        min_new_tokens=num_tokens,
        do_sample=False,
        pad_token_id=0,
    )
    return answer[0, len(prompt) :].tolist()
