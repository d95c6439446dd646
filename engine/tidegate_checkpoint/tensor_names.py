"""One set of tensor names, Hugging Face's for a text model alone, whatever the file calls them.

GGUF has llama.cpp's names; checkpoints that also see images put a prefix before the language model's. Called by the
shape reader and by the engine's weights, which must agree on what belongs to the model.
"""

import re

from tidegate_checkpoint.errors import UnsupportedCheckpoint

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"

_GGUF_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_GGUF_LAYER = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_norm": "input_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# The same word means different norms: Gemma has one before and one after each half of a layer, others only before.
_GGUF_NORMS = {"ffn_norm": "post_attention_layernorm"}
_GGUF_GEMMA_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_GGUF_BLOCK = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_LANGUAGE_PREFIXES = ("language_model.model.", "model.language_model.", "language_model.")
_LAYER = re.compile(r"model\.layers\.(\d+)\.")


def name_from_gguf(name: str, architecture: str) -> str | None:
    """The Hugging Face name of a GGUF tensor; None for derived tables. Raises UnsupportedCheckpoint if unknown."""
    if name == "rope_freqs.weight":
        return None
    stem, _, suffix = name.rpartition(".")
    if stem in _GGUF_TOP:
        return f"{_GGUF_TOP[stem]}.{suffix}"
    norms = _GGUF_GEMMA_NORMS if architecture == "gemma3" else _GGUF_NORMS
    if (match := _GGUF_BLOCK.fullmatch(name)) and (part := {**_GGUF_LAYER, **norms}.get(match[2])):
        return f"model.layers.{match[1]}.{part}.{match[3]}"
    raise UnsupportedCheckpoint(f"GGUF tensor '{name}' is not known in architecture '{architecture}'")


def text_name(name: str, num_layers: int) -> str | None:
    """A stored name without its prefix; None for what the text model does not use (vision, rotary tables, MTP)."""
    for prefix in _LANGUAGE_PREFIXES:
        if name.startswith(prefix):
            rest = name.removeprefix(prefix)
            name = rest if rest.startswith(("model.", "lm_head.")) else f"model.{rest}"
            break
    if name.endswith("rotary_emb.inv_freq"):
        return None
    if match := _LAYER.match(name):
        return name if int(match[1]) < num_layers else None
    return name if name in (EMBEDDING, HEAD, "model.norm.weight") else None
